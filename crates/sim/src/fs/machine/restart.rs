//! A clean close and the opening after it: everything is durable, and what was warm is warm still.

use terrace_engine::Engine;

use crate::{
    act::Act,
    ensure,
    fs::{models::Models, rig::Rig, world::World},
    trace,
    violation::Check,
};

/// What is warm and belongs to a file that there is: dataset, object, region, heat.
fn warm_regions(rig: &Rig, models: &Models, engine: &Engine) -> Vec<(u32, u64, u32, f32)> {
    let minutes = (rig.now_seconds() / 60) as u32;
    let mut warm = Vec::new();
    let lives = |number: u32, object: u64| {
        rig.handles.filesystems().any(|(index, handle)| {
            let tree = &models.filesystems[index].history.newest().tree;
            handle.dataset().number() == number && tree.node(object).is_some_and(|node| node.links > 0)
        })
    };
    engine
        .environment()
        .heat
        .for_each(minutes, |dataset, object, region, heat| {
            if lives(dataset, object) && heat.reads + heat.writes > 0.5 {
                warm.push((dataset, object, region, heat.reads + heat.writes));
            }
        });
    warm
}

/// Closes and opens again with nothing in between.
pub(crate) struct CloseAndOpen;

impl Act<World> for CloseAndOpen {
    fn perform(&mut self, world: &mut World) -> Check {
        let engine = world.rig.engine()?;
        let warm = warm_regions(&world.rig, &world.models, &engine);
        let quiet = !world.rig.condition.is_failing() && !world.rig.condition.filled;
        match engine.close() {
            Ok(()) => {
                trace!(world.rig.trace, "closed");
                world.models.closed();
                drop(engine);
                world.reopen(false, false)?;
                let engine = world.rig.engine()?;
                let minutes = (world.rig.now_seconds() / 60) as u32;
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
                trace!(world.rig.trace, "close: {words}");
                ensure!(
                    !world.rig.is_powered()
                        || world.rig.condition.is_failing()
                        || world.rig.condition.filled
                        || words.contains("is full"),
                    "close failed although nothing was wrong: {words}"
                );
                world.recover(false)
            }
        }
    }
}
