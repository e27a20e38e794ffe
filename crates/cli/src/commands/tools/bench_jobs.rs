//! What `terrace bench` measures in a directory. Each job returns a rate: more is better.
//!
//! Invariants: content does not compress and does not repeat, unless a job says so; large files are read and written
//! past the kernel's cache where the filesystem allows it; whatever a job makes lies in the directory that it is given.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};
use terrace_device::AlignedBuffer;

const BLOCK: usize = 4096;
const LARGE: usize = 1 << 20;
/// How long a job of random accesses runs.
const RANDOM_TIME: Duration = Duration::from_secs(4);
const SMALL_FILE_BYTES: usize = 1024;

/// How much a run takes.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Size of the large file, bytes, a multiple of 1 MiB.
    pub bytes: u64,
    /// How many small files.
    pub files: u32,
}

/// A rate with its unit.
pub struct Rate {
    /// What was measured.
    pub job: &'static str,
    /// Of what per second.
    pub unit: &'static str,
    /// How many.
    pub per_second: f64,
}

fn rate(job: &'static str, unit: &'static str, count: f64, took: Duration) -> Rate {
    Rate {
        job,
        unit,
        per_second: count / took.as_secs_f64().max(1e-9),
    }
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// Opens past the kernel's cache, or through it where that is refused.
fn open(path: &Path, write: bool) -> io::Result<File> {
    let with = |flags| {
        OpenOptions::new()
            .read(true)
            .write(write)
            .create(write)
            .custom_flags(flags)
            .open(path)
    };
    match with(libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => with(0),
        outcome => outcome,
    }
}

/// One large file: in order, at random, and with fsync after each write.
pub fn data(directory: &Path, extent: Extent, seed: u64) -> io::Result<Vec<Rate>> {
    let path = directory.join("large");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut buffer = AlignedBuffer::zeroed(LARGE);
    let mebibytes = (extent.bytes / LARGE as u64) as f64;
    let pieces = extent.bytes / LARGE as u64;
    let mut rates = Vec::new();

    let file = open(&path, true)?;
    let took = timed(|| {
        for piece in 0..pieces {
            random.fill_bytes(&mut buffer);
            file.write_all_at(&buffer, piece * LARGE as u64)?;
        }
        file.sync_all()
    })?;
    rates.push(rate("sequential write", "MiB/s", mebibytes, took));
    let took =
        timed(|| (0..pieces).try_for_each(|piece| file.read_exact_at(&mut buffer, piece * LARGE as u64)))?;
    rates.push(rate("sequential read", "MiB/s", mebibytes, took));

    let blocks = extent.bytes / BLOCK as u64;
    let mut small = AlignedBuffer::zeroed(BLOCK);
    let mut at_random = |write: bool, sync: bool| -> io::Result<(f64, Duration)> {
        let started = Instant::now();
        let mut count = 0_u32;
        while started.elapsed() < RANDOM_TIME {
            let offset = random.random_range(0..blocks) * BLOCK as u64;
            if write {
                random.fill_bytes(&mut small);
                file.write_all_at(&small, offset)?;
            } else {
                file.read_exact_at(&mut small, offset)?;
            }
            if sync {
                file.sync_data()?;
            }
            count += 1;
        }
        Ok((f64::from(count), started.elapsed()))
    };
    let (count, took) = at_random(false, false)?;
    rates.push(rate("random read 4K", "IOPS", count, took));
    let (count, took) = at_random(true, false)?;
    rates.push(rate("random write 4K", "IOPS", count, took));
    let (count, took) = at_random(true, true)?;
    rates.push(rate("write 4K + fsync", "IOPS", count, took));
    drop(file);
    fs::remove_file(&path)?;
    Ok(rates)
}

/// Many small files: made, listed, looked at, read, removed.
pub fn files(directory: &Path, extent: Extent, seed: u64) -> io::Result<Vec<Rate>> {
    let directory = directory.join("small");
    fs::create_dir(&directory)?;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut content = [0; SMALL_FILE_BYTES];
    let count = f64::from(extent.files);
    let path = |number: u32| directory.join(format!("file-{number:06}"));
    let mut rates = Vec::new();

    let took = timed(|| {
        for number in 0..extent.files {
            random.fill_bytes(&mut content);
            fs::write(path(number), content)?;
        }
        Ok(())
    })?;
    rates.push(rate("create", "files/s", count, took));
    let took = timed(|| fs::read_dir(&directory)?.try_for_each(|entry| entry.map(drop)))?;
    rates.push(rate("list", "files/s", count, took));
    let took =
        timed(|| (0..extent.files).try_for_each(|number| fs::symlink_metadata(path(number)).map(drop)))?;
    rates.push(rate("stat", "files/s", count, took));
    let took = timed(|| (0..extent.files).try_for_each(|number| fs::read(path(number)).map(drop)))?;
    rates.push(rate("read", "files/s", count, took));
    let took = timed(|| (0..extent.files).try_for_each(|number| fs::remove_file(path(number))))?;
    rates.push(rate("remove", "files/s", count, took));
    fs::remove_dir(&directory)?;
    Ok(rates)
}

/// The same content twice, in files that are each synced: what dedup saves.
pub fn twice(directory: &Path, extent: Extent, seed: u64) -> io::Result<Vec<Rate>> {
    const FILES: u64 = 8;
    let mebibytes = (extent.bytes / LARGE as u64) as f64;
    let pass = |name: &str| -> io::Result<Duration> {
        let directory = directory.join(name);
        fs::create_dir(&directory)?;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut content = vec![0; LARGE];
        timed(|| {
            for number in 0..FILES {
                let mut file = File::create(directory.join(number.to_string()))?;
                for _ in 0..extent.bytes / FILES / LARGE as u64 {
                    random.fill_bytes(&mut content);
                    io::Write::write_all(&mut file, &content)?;
                }
                file.sync_all()?;
            }
            Ok(())
        })
    };
    let rates = vec![
        rate("first pass", "MiB/s", mebibytes, pass("first")?),
        rate("second pass, same content", "MiB/s", mebibytes, pass("second")?),
    ];
    fs::remove_dir_all(directory.join("first"))?;
    fs::remove_dir_all(directory.join("second"))?;
    Ok(rates)
}
