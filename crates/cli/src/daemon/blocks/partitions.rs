//! For which sectors the partition table on a disk was made: tables count in sectors, and with sectors of another size
//! nobody finds the partitions, or firmware anything to boot from.
//!
//! Invariants: reads the first two blocks of 4 KiB, changes nothing, and names a size only where the table cannot be meant
//! for the other one.

use terrace_dataset::BlockDevice;

const LARGE: u64 = 4096;
const SMALL: u64 = 512;
/// Where the four entries of a master boot record begin, and how long each is.
const ENTRIES: usize = 446;
const ENTRY_BYTES: usize = 16;

/// What to say of a disk whose partition table was made for sectors of another size than its own.
pub fn note(volume: &str, disk: &dyn BlockDevice) -> Option<String> {
    let has = u64::from(disk.block_bytes());
    let made_for = made_for(disk)?;
    let name = volume.split('@').next().unwrap_or(volume);
    (made_for != has).then(|| {
        format!(
            "'{volume}' holds a partition table for sectors of {made_for} bytes, and has sectors of {has}: its partitions will not \
             be found; 'terrace set block_size={made_for} {name}' changes that while it is neither attached nor served"
        )
    })
}

/// The size of sectors that the table was made for, if there is one and it can be told.
fn made_for(disk: &dyn BlockDevice) -> Option<u64> {
    let size_bytes = disk.size_bytes();
    if size_bytes < 2 * LARGE {
        return None;
    }
    let mut head = vec![0; 2 * LARGE as usize];
    disk.read(0, &mut head).ok()?;
    let has_header = |at: u64| head[at as usize..].starts_with(b"EFI PART");
    match (has_header(SMALL), has_header(LARGE)) {
        (true, false) => return Some(SMALL),
        (false, true) => return Some(LARGE),
        (true, true) => return None,
        (false, false) => {}
    }
    // Without a GPT the end of the last partition tells, if it would lie behind the disk's.
    if head[510..512] != [0x55, 0xAA] {
        return None;
    }
    let mut last_sector = 0;
    for entry in head[ENTRIES..510].chunks_exact(ENTRY_BYTES) {
        if entry[0] & 0x7F != 0 {
            // No partition table: the boot code of a filesystem without one.
            return None;
        }
        let number = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        if entry[4] != 0 {
            last_sector = last_sector.max(u64::from(number(8)) + u64::from(number(12)));
        }
    }
    let only_small = last_sector * SMALL <= size_bytes && last_sector * LARGE > size_bytes;
    only_small.then_some(SMALL)
}

#[cfg(test)]
mod tests {
    use terrace_dataset::{BlockStatus, FsError};

    use super::*;

    struct Disk {
        content: Vec<u8>,
        block_bytes: u32,
    }

    impl BlockDevice for Disk {
        fn size_bytes(&self) -> u64 {
            self.content.len() as u64
        }
        fn block_bytes(&self) -> u32 {
            self.block_bytes
        }
        fn read_only(&self) -> bool {
            true
        }
        fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FsError> {
            buffer.copy_from_slice(&self.content[offset as usize..][..buffer.len()]);
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), FsError> {
            Err(FsError::ReadOnly)
        }
        fn write_zeroes(&self, _: u64, _: u64) -> Result<(), FsError> {
            Err(FsError::ReadOnly)
        }
        fn discard(&self, _: u64, _: u64) -> Result<(), FsError> {
            Err(FsError::ReadOnly)
        }
        fn flush(&self) -> Result<(), FsError> {
            Ok(())
        }
        fn block_status(&self, _: u64, _: u64, _: usize) -> Result<Vec<BlockStatus>, FsError> {
            Ok(Vec::new())
        }
    }

    fn disk(sectors: u32, write: impl Fn(&mut [u8])) -> Disk {
        let mut content = vec![0; 1 << 20];
        write(&mut content);
        Disk {
            content,
            block_bytes: sectors,
        }
    }

    #[test]
    fn a_gpt_tells_its_sectors() {
        let small = |content: &mut [u8]| content[512..520].copy_from_slice(b"EFI PART");
        let large = |content: &mut [u8]| content[4096..4104].copy_from_slice(b"EFI PART");
        assert_eq!(note("t/v", &disk(512, small)), None);
        assert_eq!(note("t/v", &disk(4096, large)), None);
        let told = note("t/v@one", &disk(4096, small)).unwrap();
        assert!(told.contains("'terrace set block_size=512 t/v'"), "{told}");
        let told = note("t/v", &disk(512, large)).unwrap();
        assert!(told.contains("'terrace set block_size=4096 t/v'"), "{told}");
        assert_eq!(note("t/v", &disk(4096, |_| ())), None);
    }

    #[test]
    fn a_master_boot_record_tells_them_by_where_it_ends() {
        let with = |sectors: u32, status: u8| {
            move |content: &mut [u8]| {
                content[510..512].copy_from_slice(&[0x55, 0xAA]);
                content[446] = status;
                content[450] = 0x83;
                content[454..458].copy_from_slice(&64_u32.to_le_bytes());
                content[458..462].copy_from_slice(&sectors.to_le_bytes());
            }
        };
        assert!(note("t/v", &disk(4096, with(1900, 0x80))).is_some());
        assert_eq!(note("t/v", &disk(512, with(1900, 0x80))), None);
        assert_eq!(note("t/v", &disk(4096, with(100, 0x80))), None, "either can be");
        assert_eq!(note("t/v", &disk(4096, with(1900, 0x31))), None, "no table");
        assert_eq!(note("t/v", &disk(4096, with(u32::MAX, 0))), None, "fits neither");
    }

    #[test]
    fn what_is_too_small_for_a_table_has_none() {
        let tiny = Disk {
            content: vec![0; 4096],
            block_bytes: 4096,
        };
        assert_eq!(note("t/v", &tiny), None);
    }
}
