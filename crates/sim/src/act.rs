//! `Act`: one kind of thing that is done in a run, and the tables that a level is made of.
//!
//! A new kind is a file with a struct that implements [`Act`], and a line in a table of its level. What an act remembers,
//! and chance of its own, are its fields: chance of its own leaves the seeds that are kept as they were.

use terrace_sync::trace::operation;

use crate::violation::Check;

/// One kind of thing that is done to a world.
pub(crate) trait Act<World> {
    /// What it is called.
    fn name(&self) -> &'static str {
        name_of::<Self>()
    }

    /// Before the first turn.
    fn begin(&mut self, _world: &mut World) -> Check {
        Ok(())
    }

    /// Does it, if it can be done now.
    fn perform(&mut self, world: &mut World) -> Check;

    /// After the last turn; whether the run ends with that.
    fn end(&mut self, _world: &mut World) -> Check<bool> {
        Ok(false)
    }
}

/// The name of a type, without where it is and what it is made of.
pub(crate) fn name_of<T: ?Sized>() -> &'static str {
    let whole = std::any::type_name::<T>();
    let whole = whole.split_once('<').map_or(whole, |(name, _)| name);
    whole.rsplit_once("::").map_or(whole, |(_, name)| name)
}

/// Does it, and what locks it takes counts as its.
fn perform<World>(act: &mut dyn Act<World>, world: &mut World) -> Check {
    operation(act.name(), || act.perform(world))
}

/// The acts of a level.
pub(crate) struct Table<World> {
    /// Done in every turn, before the one that is chosen: most of them do something now and then.
    pub(crate) before: Vec<Box<dyn Act<World>>>,
    /// Of these each turn does one, by its weight.
    pub(crate) choices: Vec<(u64, Box<dyn Act<World>>)>,
    /// Done in every turn, behind it.
    pub(crate) after: Vec<Box<dyn Act<World>>>,
}

impl<World> Table<World> {
    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Act<World>>> {
        let choices = self.choices.iter_mut().map(|(_, act)| act);
        self.before.iter_mut().chain(choices).chain(&mut self.after)
    }

    /// Before the first turn.
    pub(crate) fn begin(&mut self, world: &mut World) -> Check {
        self.all().try_for_each(|act| act.begin(world))
    }

    /// One turn; `draw` is given the sum of all weights, and picks a number below it.
    pub(crate) fn turn(&mut self, world: &mut World, draw: impl FnOnce(&mut World, u64) -> u64) -> Check {
        for act in &mut self.before {
            perform(&mut **act, world)?;
        }
        let weights = self.choices.iter().map(|(weight, _)| weight);
        let mut at = draw(world, weights.sum());
        for (weight, act) in &mut self.choices {
            if at < *weight {
                perform(&mut **act, world)?;
                break;
            }
            at -= *weight;
        }
        for act in &mut self.after {
            perform(&mut **act, world)?;
        }
        Ok(())
    }

    /// After the last turn; whether the run ended with one of the acts.
    pub(crate) fn end(&mut self, world: &mut World) -> Check<bool> {
        for act in self.all() {
            if act.end(world)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Add(u64);

    impl Act<u64> for Add {
        fn perform(&mut self, world: &mut u64) -> Check {
            *world += self.0;
            Ok(())
        }
    }

    #[test]
    fn a_turn_does_one_of_the_choices_by_its_weight_and_all_that_stand_beside() {
        let mut table = Table::<u64> {
            before: vec![Box::new(Add(1_000_000))],
            choices: vec![(3, Box::new(Add(1))), (1, Box::new(Add(1000)))],
            after: vec![Box::new(Add(10_000_000))],
        };
        let mut world = 0;
        for at in 0..4 {
            let drawn = table.turn(&mut world, |_, all| {
                assert_eq!(all, 4);
                at
            });
            drawn.expect("it adds");
        }
        assert_eq!(world, 44_001_003);
    }
}
