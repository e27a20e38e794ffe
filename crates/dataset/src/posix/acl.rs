//! POSIX access control lists, in the kernel's binary form (`linux/posix_acl_xattr.h`): parsing, checking,
//! inheriting, and keeping them in step with the mode (POSIX 1003.1e draft 17, as Linux does it).
//!
//! Invariants: a parsed list is valid: it has exactly one owner, owning group and others entry, a mask if it names
//! users or groups, and no name twice.

use super::{context::Context, fs_error::FsError};

/// Name of the attribute that holds the access ACL.
pub(crate) const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds the default ACL.
pub(crate) const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;
const ENTRY_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Parses the value of an attribute.
    pub(crate) fn parse(value: &[u8]) -> Result<Self, FsError> {
        let (version, rest) = value.split_first_chunk::<4>().ok_or(FsError::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION || !rest.len().is_multiple_of(ENTRY_BYTES) {
            return Err(FsError::Invalid);
        }
        let mut entries = Vec::with_capacity(rest.len() / ENTRY_BYTES);
        for bytes in rest.chunks_exact(ENTRY_BYTES) {
            let entry = Entry {
                tag: u16::from_le_bytes([bytes[0], bytes[1]]),
                permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
                id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            };
            if entry.permissions > 7 {
                return Err(FsError::Invalid);
            }
            entries.push(entry);
        }
        entries.sort_by_key(|entry| (entry.tag, entry.id));
        let acl = Self { entries };
        acl.validate()?;
        Ok(acl)
    }

    fn validate(&self) -> Result<(), FsError> {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        let named = count(USER) + count(GROUP);
        let valid = self.entries.iter().all(|entry| known.contains(&entry.tag))
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
            && (count(MASK) == 1 || (named == 0 && count(MASK) == 0))
            && self.entries.windows(2).all(|pair| {
                !(matches!(pair[0].tag, USER | GROUP)
                    && (pair[0].tag, pair[0].id) == (pair[1].tag, pair[1].id))
            });
        if valid { Ok(()) } else { Err(FsError::Invalid) }
    }

    /// The value of the attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(4 + self.entries.len() * ENTRY_BYTES);
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            let id = if matches!(entry.tag, USER | GROUP) {
                entry.id
            } else {
                NO_ID
            };
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    fn get(&self, tag: u16) -> Option<u32> {
        self.entries
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| u32::from(entry.permissions))
    }

    fn set(&mut self, tag: u16, permissions: u32) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.tag == tag) {
            entry.permissions = (permissions & 7) as u16;
        }
    }

    /// Whether it says no more than the mode does, so that it need not be kept.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The permission bits (0o777) that the mode shows for it: the mask stands for the group.
    pub(crate) fn mode(&self) -> u32 {
        let part = |tag| self.get(tag).unwrap_or(0);
        let group = self.get(MASK).unwrap_or_else(|| part(GROUP_OBJ));
        part(USER_OBJ) << 6 | group << 3 | part(OTHER)
    }

    /// Follows a chmod.
    pub(crate) fn apply_mode(&mut self, mode: u32) {
        self.set(USER_OBJ, mode >> 6);
        self.set(OTHER, mode);
        if self.get(MASK).is_some() {
            self.set(MASK, mode >> 3);
        } else {
            self.set(GROUP_OBJ, mode >> 3);
        }
    }

    /// What a new object gets from its directory's default ACL when `mode` was asked for: permission bits, and an
    /// access ACL if it says more than them. The umask does not count.
    pub(crate) fn inherit(&self, mode: u32) -> (u32, Option<Acl>) {
        let mut acl = self.clone();
        acl.set(USER_OBJ, acl.get(USER_OBJ).unwrap_or(0) & (mode >> 6));
        acl.set(OTHER, acl.get(OTHER).unwrap_or(0) & mode);
        let group = if acl.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        acl.set(group, acl.get(group).unwrap_or(0) & (mode >> 3));
        let bits = acl.mode();
        (mode & !0o777 | bits, (!acl.is_minimal()).then_some(acl))
    }

    /// Whether it lets the caller do all of `wanted`.
    pub(crate) fn permits(&self, context: &Context, uid: u32, gid: u32, wanted: u32) -> bool {
        let mask = self.get(MASK).unwrap_or(7);
        let grants = |permissions: u16, mask: u32| u32::from(permissions) & mask & wanted == wanted;
        if context.uid == uid {
            return self.get(USER_OBJ).unwrap_or(0) & wanted == wanted;
        }
        if let Some(entry) = self
            .entries
            .iter()
            .find(|entry| entry.tag == USER && entry.id == context.uid)
        {
            return grants(entry.permissions, mask);
        }
        let mut member = false;
        for entry in &self.entries {
            let group = match entry.tag {
                GROUP_OBJ => gid,
                GROUP => entry.id,
                _ => continue,
            };
            if context.in_group(group) {
                member = true;
                if grants(entry.permissions, mask) {
                    return true;
                }
            }
        }
        !member && self.get(OTHER).unwrap_or(0) & wanted == wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    #[test]
    fn named_users_are_masked_and_groups_fall_through_to_others_only_for_strangers() {
        let value = acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 10),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 0, 30),
            (MASK, 4, NO_ID),
            (OTHER, 1, NO_ID),
        ]);
        let acl = Acl::parse(&value).unwrap();
        assert_eq!(acl.encode(), value);
        assert_eq!(acl.mode(), 0o741);
        assert!(acl.permits(&Context::user(10, 99), 1, 2, 4));
        assert!(!acl.permits(&Context::user(10, 99), 1, 2, 2));
        assert!(acl.permits(&Context::user(11, 2), 1, 2, 4));
        assert!(!acl.permits(&Context::user(11, 30), 1, 2, 1));
        assert!(acl.permits(&Context::user(11, 99), 1, 2, 1));
    }

    #[test]
    fn a_new_object_inherits_what_it_asked_for() {
        let value = acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 7, 10),
            (GROUP_OBJ, 7, NO_ID),
            (MASK, 7, NO_ID),
            (OTHER, 5, NO_ID),
        ]);
        let (mode, inherited) = Acl::parse(&value).unwrap().inherit(0o4644);
        assert_eq!(mode, 0o4644);
        let mut inherited = inherited.unwrap();
        assert_eq!(inherited.get(MASK), Some(4));
        inherited.apply_mode(0o600);
        assert_eq!((inherited.mode(), inherited.get(GROUP_OBJ)), (0o600, Some(7)));
    }

    #[test]
    fn invalid_lists_are_refused() {
        for value in [
            vec![],
            vec![2, 0, 0, 0],
            acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0)]),
            acl(&[(USER_OBJ, 8, 0), (GROUP_OBJ, 7, 0), (OTHER, 0, 0)]),
            acl(&[(USER_OBJ, 7, 0), (USER, 7, 5), (GROUP_OBJ, 7, 0), (OTHER, 0, 0)]),
            acl(&[
                (USER_OBJ, 7, 0),
                (USER, 7, 5),
                (USER, 7, 5),
                (GROUP_OBJ, 7, 0),
                (MASK, 7, 0),
                (OTHER, 0, 0),
            ]),
            acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0), (OTHER, 0, 0), (0x40, 0, 0)]),
        ] {
            assert_eq!(Acl::parse(&value), Err(FsError::Invalid));
        }
    }
}
