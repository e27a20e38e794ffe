//! `Via`: through which interface of the kernel a volume becomes a block device: ublk or a loop device, chosen at run time.
//!
//! Invariants: what the user asks for by name is done or refused, never replaced by the other; a device that comes back
//! stays of the kind that it was, as long as that can be had.

use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// ublk where it can be used, else a loop device
    #[default]
    Auto,
    /// ublk (Linux 6.1, module ublk_drv)
    Ublk,
    /// A loop device over a file that FUSE shows
    Loop,
}

/// How it stands with ublk here.
// A program built with ublk never finds the last of these, one built without never the others.
#[allow(dead_code)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UblkHere {
    /// It can be used.
    Usable {
        /// Whether a device can get another size while it is in use.
        resizes: bool,
    },
    /// The kernel has none, or its module is not loaded.
    Absent,
    /// It is there and refused, for this reason.
    Refused(String),
    /// This program was built without.
    NotBuilt,
}

/// What is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// A ublk device.
    Ublk {
        /// A loop device will do if it cannot be made.
        or_loop: bool,
    },
    /// A loop device.
    Loop,
}

impl UblkHere {
    /// Looks.
    #[cfg(feature = "ublk")]
    pub fn look() -> Self {
        match terrace_ublk::availability() {
            terrace_ublk::Availability::Usable { resizes } => Self::Usable { resizes },
            terrace_ublk::Availability::Absent => Self::Absent,
            terrace_ublk::Availability::Refused(why) => Self::Refused(why),
        }
    }

    /// Looks.
    #[cfg(not(feature = "ublk"))]
    pub fn look() -> Self {
        Self::NotBuilt
    }

    /// Why it cannot be used; `None` if it can.
    pub fn hindrance(&self) -> Option<String> {
        match self {
            Self::Usable { .. } => None,
            Self::Absent => Some("there is no /dev/ublk-control".into()),
            Self::Refused(why) => Some(why.clone()),
            Self::NotBuilt => Some("this terrace was built without ublk".into()),
        }
    }

    /// What `terrace doctor` says: whether volumes are attached as well as can be, how they are, and what to change.
    pub fn advice(&self) -> (bool, String, &'static str) {
        const WHY: &str = "volumes are attached without, and what is mounted from them gets errors when the daemon is killed; as root \
                           'modprobe ublk_drv' on Linux 6.1 or newer";
        match self {
            Self::Usable { resizes: true } => (true, "volumes are attached through ublk".into(), ""),
            Self::Usable { resizes: false } => (
                true,
                "volumes are attached through ublk; one in use shows a new size when it is attached again (Linux 6.16: at once)".into(),
                "",
            ),
            _ => {
                let why = self.hindrance().unwrap_or_default();
                (false, format!("volumes are attached through loop devices: {why}"), WHY)
            }
        }
    }
}

impl Via {
    /// Whether `device` is of the kind that is asked for.
    pub fn fits(self, device: &Path) -> bool {
        match self {
            Self::Auto => true,
            Self::Ublk => !is_loop(device),
            Self::Loop => is_loop(device),
        }
    }

    /// What to make; `before` is the device that it was last. An error says why what was asked for cannot be had.
    pub fn choose(self, before: Option<&Path>, here: &UblkHere) -> Result<Choice, String> {
        let was_loop = before.is_some_and(is_loop);
        match (self, here.hindrance()) {
            (Self::Loop, _) => Ok(Choice::Loop),
            (Self::Ublk, None) => Ok(Choice::Ublk { or_loop: false }),
            (Self::Ublk, Some(why)) => Err(why),
            (Self::Auto, None) if !was_loop => Ok(Choice::Ublk { or_loop: true }),
            (Self::Auto, _) => Ok(Choice::Loop),
        }
    }
}

fn is_loop(device: &Path) -> bool {
    device
        .to_str()
        .is_some_and(|device| device.starts_with("/dev/loop"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: UblkHere = UblkHere::Usable { resizes: false };

    #[test]
    fn the_choice_is_made_by_what_is_here() {
        assert_eq!(Via::Auto.choose(None, &HERE), Ok(Choice::Ublk { or_loop: true }));
        assert_eq!(Via::Auto.choose(None, &UblkHere::Absent), Ok(Choice::Loop));
        assert_eq!(Via::Auto.choose(None, &UblkHere::NotBuilt), Ok(Choice::Loop));
        let refused = UblkHere::Refused("not allowed".into());
        assert_eq!(Via::Auto.choose(None, &refused), Ok(Choice::Loop));
        assert_eq!(Via::Ublk.choose(None, &HERE), Ok(Choice::Ublk { or_loop: false }));
        assert_eq!(Via::Ublk.choose(None, &refused), Err("not allowed".into()));
        assert_eq!(Via::Loop.choose(None, &HERE), Ok(Choice::Loop));
    }

    #[test]
    fn a_device_that_comes_back_stays_of_its_kind() {
        let (looped, ublk) = (Path::new("/dev/loop3"), Path::new("/dev/ublkb0"));
        assert_eq!(Via::Auto.choose(Some(looped), &HERE), Ok(Choice::Loop));
        assert_eq!(
            Via::Auto.choose(Some(ublk), &HERE),
            Ok(Choice::Ublk { or_loop: true })
        );
        assert_eq!(Via::Auto.choose(Some(ublk), &UblkHere::Absent), Ok(Choice::Loop));
        assert_eq!(
            Via::Ublk.choose(Some(looped), &HERE),
            Ok(Choice::Ublk { or_loop: false })
        );
    }

    #[test]
    fn doctor_says_which_and_why() {
        let (well, said, advice) = UblkHere::Absent.advice();
        assert!(
            !well && said.contains("loop devices: there is no /dev/ublk-control"),
            "{said}"
        );
        assert!(advice.contains("modprobe ublk_drv"));
        let (well, said, advice) = UblkHere::Usable { resizes: true }.advice();
        assert_eq!(
            (well, &*said, advice),
            (true, "volumes are attached through ublk", "")
        );
        assert!(HERE.advice().1.contains("6.16"));
        assert!(UblkHere::NotBuilt.advice().1.contains("built without"));
    }

    #[test]
    fn the_words_are_those_of_the_command_line() {
        for via in [Via::Auto, Via::Ublk, Via::Loop] {
            let word = serde_json::to_value(via).unwrap();
            assert_eq!(Via::from_str(word.as_str().unwrap(), false), Ok(via));
        }
    }
}
