//! Requests about heat: the regions of a file, what devices hold and how warm it is, other sizes of the fast tier.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{FileKind, REGION_BYTES, TierBytes, keys, read_region};
use terrace_store::Batch;

use super::{
    Daemon,
    answers::{Parameters, failed},
    paths::{file_failure, find, walk},
};

/// Most warm regions whose place is looked up for one answer.
const REGIONS_MAX: usize = 16_384;
/// Most sizes in one question.
const SIZES_MAX: usize = 64;

impl Daemon {
    fn minutes(&self) -> u32 {
        u32::try_from(self.engine.clock().now_nanoseconds() / 60_000_000_000).unwrap_or(u32::MAX)
    }

    /// A page of the regions of a file.
    pub(super) fn regions(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let name = parameters.text("path")?;
        let (from, limit) = (
            parameters.number("from")?,
            parameters.number("limit")?.min(100_000),
        );
        let what = format!("list the regions of '{name}'");
        let fail = |error: &dyn std::fmt::Display| failed(&what, error);
        let place = find(&self.engine, &name)?;
        let Some(filesystem) = &place.live else {
            return Err(Failure::new(
                what.clone(),
                "it is a past state",
                "ask for the live file",
            ));
        };
        let found =
            walk(&**filesystem, &place.parts, true).map_err(|error| file_failure("find", &name, &error))?;
        if found.kind != FileKind::File {
            return Err(Failure::new(
                what.clone(),
                "it is not a file",
                "name a file; 'terrace where' sums up directories and datasets",
            ));
        }
        // What is still in memory has no place yet.
        self.sync()?;
        let dataset = self
            .engine
            .datasets()
            .state(&place.dataset)
            .map_err(|error| fail(&error))?
            .number();
        let store = self.engine.store();
        let body = terrace_dataset::body_of_object(store, dataset, found.object)
            .map_err(|error| fail(&error))?
            .unwrap_or(found.object);
        let tiers = self.engine.pool().tiers();
        let end = found.size.div_ceil(REGION_BYTES);
        let last = from.saturating_add(limit).min(end);
        let mut rows = Vec::new();
        for region in from..last {
            let short = u32::try_from(region).unwrap_or(u32::MAX);
            let heat = self
                .engine
                .environment()
                .heat
                .of(dataset, body, short, self.minutes());
            let mut bytes = TierBytes::default();
            if let Some(found) = read_region(&**store, dataset, body, region).map_err(|error| fail(&error))? {
                bytes
                    .add_region(&**store, &found.record)
                    .map_err(|error| fail(&error))?;
            }
            let by_tier: BTreeMap<&str, u64> = tiers
                .iter()
                .enumerate()
                .map(|(at, tier)| {
                    let bytes = bytes.by_tier.get(at).copied().unwrap_or(0);
                    (tier.settings.name.as_str(), bytes)
                })
                .collect();
            rows.push(json!({
                "region": region, "reads": heat.reads, "writes": heat.writes, "bytes_by_tier": by_tier,
                "lost_chunks": bytes.missing,
            }));
        }
        let next = (last < end).then_some(last);
        Ok(json!({ "path": name, "total": end, "regions": rows, "next": next }))
    }

    /// What each device holds, and how warm that is.
    pub(super) fn tier_devices(&self) -> Result<Value, Failure> {
        let store = self.engine.store();
        let heat = &self.engine.environment().heat;
        let mut warm = Vec::new();
        heat.for_each(self.minutes(), |dataset, body, region, heat| {
            if warm.len() < REGIONS_MAX && heat.reads + heat.writes > 0.0 {
                warm.push((dataset, body, region, heat));
            }
        });
        // Regions, reads, writes; a region counts where its first chunk lies.
        let mut by_device: HashMap<u16, (u64, f64, f64)> = HashMap::new();
        for (dataset, body, region, heat) in warm {
            let found = read_region(&**store, dataset, body, u64::from(region));
            let Some(found) = found.map_err(|error| failed("look up regions", &error))? else {
                continue;
            };
            let Some(run) = found.record.runs().first() else {
                continue;
            };
            let info = store
                .chunk_info(run.chunk)
                .map_err(|error| failed("look up chunks", &error))?;
            if let Some(info) = info {
                let sums = by_device.entry(info.device).or_default();
                sums.0 += 1;
                sums.1 += f64::from(heat.reads);
                sums.2 += f64::from(heat.writes);
            }
        }
        let status = self.engine.status();
        let rows = status.tiers.iter().flat_map(|tier| {
            tier.devices.iter().map(|device| {
                let (regions, reads, writes) = by_device.get(&device.number).copied().unwrap_or_default();
                let average = |sum: f64| if regions == 0 { 0.0 } else { sum / regions as f64 };
                let load = self.engine.chunks().device_load(device.number);
                json!({
                    "tier": tier.name, "number": device.number, "path": device.path, "state": device.state,
                    "size_bytes": device.size_bytes, "used_bytes": device.used_bytes, "live_bytes": load.live_bytes,
                    "warm_regions": regions, "average_reads": average(reads), "average_writes": average(writes),
                })
            })
        });
        Ok(Value::Array(rows.collect()))
    }

    /// Which share of the reads so far other sizes of the fastest tier would have answered.
    pub(super) fn what_if(&self, parameters: &Parameters) -> Result<Value, Failure> {
        let mut sizes: Vec<u64> = parameters.value("sizes")?;
        let what = format!("predict for pool '{}'", self.pool);
        if sizes.len() > SIZES_MAX {
            return Err(Failure::new(
                what,
                "these are too many sizes",
                format!("ask for {SIZES_MAX} at most"),
            ));
        }
        let reuse = &self.engine.environment().reuse;
        let now = self
            .engine
            .pool()
            .tiers()
            .first()
            .map_or(0, |tier| tier.size_bytes);
        sizes.push(now);
        sizes.sort_unstable();
        sizes.dedup();
        let mut rows = Vec::new();
        for size in sizes {
            let Some(rate) = reuse.hit_rate(size) else {
                return Err(Failure::new(
                    what,
                    "nothing was read since the pool was opened",
                    "ask again after a while of the usual work",
                ));
            };
            rows.push(json!({ "size_bytes": size, "hit_rate": rate, "current": size == now }));
        }
        Ok(json!({ "pool": self.pool, "reads": reuse.reads(), "sizes": rows }))
    }

    /// Forgets all heat.
    pub(super) fn clear_heat(&self) -> Result<Value, Failure> {
        let environment = self.engine.environment();
        environment.reuse.clear();
        let objects = environment.heat.clear();
        for some in objects.chunks(1000) {
            let mut batch = Batch::new();
            batch.privileged();
            for (dataset, body) in some {
                batch.delete(keys::heat(*dataset, *body));
            }
            self.engine
                .store()
                .commit(batch)
                .map_err(|error| failed("clear the heat", &error))?;
        }
        Ok(json!({ "objects": objects.len() }))
    }
}
