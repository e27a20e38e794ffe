//! A clean close and the opening after it: everything is durable, and what was warm is warm still.

use terrace_engine::Engine;

use crate::{ensure, fs::level::Run, trace, violation::Check};

impl Run {
    /// What is warm and belongs to a file that there is: dataset, object, region, heat.
    fn warm_regions(&self, engine: &Engine) -> Vec<(u32, u64, u32, f32)> {
        let minutes = (self.now_seconds() / 60) as u32;
        let mut warm = Vec::new();
        engine
            .environment()
            .heat
            .for_each(minutes, |dataset, object, region, heat| {
                let lives = self.filesystems.iter().any(|filesystem| {
                    let handle = filesystem.handle.as_ref();
                    handle.is_some_and(|handle| handle.dataset().number() == dataset)
                        && filesystem
                            .history
                            .newest()
                            .tree
                            .node(object)
                            .is_some_and(|node| node.links > 0)
                });
                if lives && heat.reads + heat.writes > 0.5 {
                    warm.push((dataset, object, region, heat.reads + heat.writes));
                }
            });
        warm
    }

    /// Closes and opens again with nothing in between.
    pub(crate) fn close_and_open(&mut self) -> Check {
        let engine = self.engine()?;
        let warm = self.warm_regions(&engine);
        let quiet = !self.storm && !self.hurt && !self.filled;
        match engine.close() {
            Ok(()) => {
                trace!(self.trace, "closed");
                for filesystem in &mut self.filesystems {
                    filesystem.history.synced();
                }
                for volume in &mut self.volumes {
                    volume.history.synced();
                }
                self.flushed();
                drop(engine);
                self.reopen(false, false)?;
                let engine = self.engine()?;
                let minutes = (self.now_seconds() / 60) as u32;
                for (dataset, object, region, before) in warm {
                    let heat = engine.environment().heat.of(dataset, object, region, minutes);
                    let after = heat.reads + heat.writes;
                    ensure!(
                        !quiet || after > before * 0.8,
                        "region {region} of object {object} had heat {before} before a restart, {after} after"
                    );
                }
                Ok(())
            }
            Err(error) => {
                drop(engine);
                let words = error.to_string();
                trace!(self.trace, "close: {words}");
                ensure!(
                    !self.rig.machine.is_powered()
                        || self.storm
                        || self.hurt
                        || self.filled
                        || words.contains("is full"),
                    "close failed although nothing was wrong: {words}"
                );
                self.recover(false)
            }
        }
    }
}
