//! Passes of a demotion: the coldest goes first, a pass for each degree of warmth.
//!
//! Invariants: what is hottest goes in the last pass, whatever the most that is counted; what makes room for hotter content
//! is clearly colder than that, so that the two do not change places.

use terrace_cache::{ChunkHeat, Heat, RegionHeat};

use crate::{extent::Moving, jobs::Job};

/// Passes that there are.
pub(crate) const PASSES: usize = PASS_HEAT.len();
/// Reads and writes of a region, decayed, up to which each pass of a demotion moves it: the coldest go first. Heat is
/// told apart by factors of two up to the most that is counted, so that what is hottest always goes last.
const PASS_HEAT: [f32; 18] = [
    0.02,
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    f32::INFINITY,
];
/// Reads and writes up to which this pass of a demotion moves; `None` when there is no further pass.
pub(crate) fn heat_of_pass(job: &Job) -> Option<f32> {
    let limit = *PASS_HEAT.get(usize::from(job.pass))?;
    let Some(colder) = job.room.map(|room| room.colder) else {
        return Some(limit);
    };
    let before = usize::from(job.pass).checked_sub(1).map(|pass| PASS_HEAT[pass]);
    before
        .is_none_or(|before| before < colder)
        .then_some(limit.min(colder))
}

/// The pass after that of the job for which there is anything: no region is that warm otherwise.
pub(crate) fn next_pass(job: &Job, heat: &Heat, minutes: u32) -> u8 {
    let next = usize::from(job.pass) + 1;
    let passed = *PASS_HEAT.get(usize::from(job.pass)).unwrap_or(&f32::INFINITY);
    let mut least = f32::INFINITY;
    heat.for_each(minutes, |_, _, _, heat| {
        let warm = warmth(job, &heat);
        if warm > passed && warm < least {
            least = warm;
        }
    });
    let found = (next..PASS_HEAT.len()).find(|at| PASS_HEAT[*at] >= least);
    // What is not known to be warm went in the first pass.
    found.map_or(PASS_HEAT.len(), |at| at.max(next)) as u8
}

/// Part of its writes that counts for a region which is to make way for what is read: what is written lands on the fastest
/// tier wherever the rest lies; only moving down what is about to be written over would be in vain.
const WRITES_PART: f32 = 0.125;

/// What is counted in the heat of regions.
const REGION_BYTES: f32 = 1_048_576.0;
/// Fewer reads may be a neighbour's, in the sketch.
const READS_SURE: u8 = 2;

/// Whether a chunk stays although its region is to go: it alone was read more often of late, for its size, than what this
/// pass moves; and where room is made for hot chunks, if it was read: not for the sake of a few of its blocks, which are found again
/// and come up by themselves.
pub(crate) fn stays(job: &Job, heat: &ChunkHeat, moving: &Moving) -> bool {
    let (id, blocks) = (moving.id(), moving.blocks());
    let reads = heat.reads(id, blocks);
    match job.room.and_then(|room| room.gives_way) {
        Some(most) => {
            let few = heat.is_concentrated(id, blocks) && heat.is_mostly_below(id, blocks, most);
            reads > most && !few
        }
        None => {
            let as_region = f32::from(reads) * REGION_BYTES / moving.bytes().max(1) as f32;
            reads >= READS_SURE && as_region > heat_of_pass(job).unwrap_or(0.0)
        }
    }
}

/// How warm a region is, as far as this demotion is concerned.
pub(crate) fn warmth(job: &Job, heat: &RegionHeat) -> f32 {
    match job.room {
        None => heat.reads + heat.writes,
        Some(_) => heat.reads + heat.writes * WRITES_PART,
    }
}

/// Reads up to which a region is clearly colder than one that was read this often: by half, and by more than chance tells
/// regions apart that are read as often as each other, of which there are many. What is not used makes way for anything.
pub(crate) fn clearly_colder(reads: f32) -> f32 {
    // The root of a count that depends on chance is off by about a half, whatever the count.
    let apart = (reads.sqrt() - 3.0).max(0.0).powi(2);
    apart.clamp(PASS_HEAT[0], (reads / 2.0).max(PASS_HEAT[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_room_is_clearly_colder() {
        // What is not used makes way for anything; what was read a little less often may be as hot.
        assert_eq!(clearly_colder(3.0), PASS_HEAT[0]);
        assert_eq!(clearly_colder(9.0), PASS_HEAT[0]);
        assert_eq!(clearly_colder(25.0), 4.0);
        assert_eq!(clearly_colder(1000.0), 500.0);
    }
}
