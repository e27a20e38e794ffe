//! The kernel's interface, byte by byte: `include/uapi/linux/ublk_cmd.h`.
//!
//! Invariant: everything here is plain bytes in the machine's own order; nothing points to anything.

/// Where devices are made.
pub const CONTROL_PATH: &str = "/dev/ublk-control";
/// Unit of sizes and addresses, whatever the logical block is.
pub const SECTOR_BYTES: u64 = 512;
/// "No device" or "any device".
pub const ANY: u32 = u32::MAX;

/// What the kernel can do, and a device is asked to do (`UBLK_F_…`).
pub const USER_RECOVERY: u64 = 1 << 3;
/// Requests that were under way when the server died are served again by the next one.
pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// A device can get another size while it is used (Linux 6.16).
pub const UPDATE_SIZE: u64 = 1 << 10;

/// Device states: the server has died.
pub const STATE_QUIESCED: u16 = 2;

const IOCTL_TYPE: u32 = b'u' as u32;
const IOCTL_WRITE: u32 = 1;
const IOCTL_READ: u32 = 2;

const fn ioctl(direction: u32, size: u32, number: u32) -> u32 {
    direction << 30 | size << 16 | IOCTL_TYPE << 8 | number
}

/// Commands to the control device (`UBLK_CMD_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Tells what a device is.
    GetInformation,
    /// Makes a device, without a disk yet.
    Add,
    /// Deletes one; returns when its last user is gone.
    Delete,
    /// Its disk appears.
    Start,
    /// Its disk goes away; its users get errors.
    Stop,
    /// Size, block size, limits of the disk to come.
    SetParameters,
    /// A server that died is forgotten.
    StartRecovery,
    /// The next one is ready.
    EndRecovery,
    /// Tells what the kernel can do (Linux 6.5).
    GetFeatures,
    /// Gives the disk another size.
    UpdateSize,
}

impl Command {
    /// The command's code; `like_ioctl` from Linux 6.4 on.
    pub const fn code(self, like_ioctl: bool) -> u32 {
        let (number, direction) = match self {
            Self::GetInformation => (0x02, IOCTL_READ),
            Self::Add => (0x04, IOCTL_READ | IOCTL_WRITE),
            Self::Delete => (0x05, IOCTL_READ | IOCTL_WRITE),
            Self::Start => (0x06, IOCTL_READ | IOCTL_WRITE),
            Self::Stop => (0x07, IOCTL_READ | IOCTL_WRITE),
            Self::SetParameters => (0x08, IOCTL_READ | IOCTL_WRITE),
            Self::StartRecovery => (0x10, IOCTL_READ | IOCTL_WRITE),
            Self::EndRecovery => (0x11, IOCTL_READ | IOCTL_WRITE),
            Self::GetFeatures => (0x13, IOCTL_READ),
            Self::UpdateSize => (0x15, IOCTL_READ | IOCTL_WRITE),
        };
        if like_ioctl {
            ioctl(direction, CONTROL_BYTES as u32, number)
        } else {
            number
        }
    }
}

/// Length of `struct ublksrv_ctrl_cmd`.
const CONTROL_BYTES: usize = 32;

/// `struct ublksrv_ctrl_cmd`, in the room that a long submission entry has for a command.
pub fn control_bytes(device: u32, address: u64, length: u16, data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[..4].copy_from_slice(&device.to_ne_bytes());
    // No queue.
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    bytes[6..8].copy_from_slice(&length.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// Commands to a device's own file (`UBLK_IO_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueCommand {
    /// Waits for the first request of a tag.
    Fetch,
    /// Answers a tag's request and waits for its next.
    CommitAndFetch,
}

impl QueueCommand {
    /// The command's code, as [`Command::code`].
    pub const fn code(self, like_ioctl: bool) -> u32 {
        let number = match self {
            Self::Fetch => 0x20,
            Self::CommitAndFetch => 0x21,
        };
        if like_ioctl {
            ioctl(IOCTL_READ | IOCTL_WRITE, 16, number)
        } else {
            number
        }
    }
}

/// `struct ublksrv_io_cmd`.
pub fn queue_command_bytes(queue: u16, tag: u16, result: i32, address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes[8..].copy_from_slice(&address.to_ne_bytes());
    bytes
}

/// Length of `struct ublksrv_ctrl_dev_info`.
pub const INFORMATION_BYTES: usize = 64;

/// What the kernel knows of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Information {
    /// Queues; the kernel takes no more than there are processors.
    pub queues: u16,
    /// Requests of a queue that may be under way.
    pub depth: u16,
    /// `STATE_…`.
    pub state: u16,
    /// Most data of one request, bytes.
    pub buffer_bytes: u32,
    /// The N of `/dev/ublkbN`.
    pub number: u32,
    /// What it can do.
    pub flags: u64,
    /// Ours: the kernel keeps it and does not look at it.
    pub token: u64,
}

impl Information {
    /// As the kernel takes it.
    pub fn encode(&self) -> [u8; INFORMATION_BYTES] {
        let mut bytes = [0; INFORMATION_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &self.queues.to_ne_bytes());
        put(2, &self.depth.to_ne_bytes());
        put(4, &self.state.to_ne_bytes());
        put(8, &self.buffer_bytes.to_ne_bytes());
        put(12, &self.number.to_ne_bytes());
        put(24, &self.flags.to_ne_bytes());
        put(32, &self.token.to_ne_bytes());
        bytes
    }

    /// As the kernel gives it.
    pub fn decode(bytes: &[u8; INFORMATION_BYTES]) -> Self {
        Self {
            queues: u16::from_ne_bytes(part(bytes, 0)),
            depth: u16::from_ne_bytes(part(bytes, 2)),
            state: u16::from_ne_bytes(part(bytes, 4)),
            buffer_bytes: u32::from_ne_bytes(part(bytes, 8)),
            number: u32::from_ne_bytes(part(bytes, 12)),
            flags: u64::from_ne_bytes(part(bytes, 24)),
            token: u64::from_ne_bytes(part(bytes, 32)),
        }
    }
}

/// Length of `struct ublksrv_io_desc`.
pub const DESCRIPTOR_BYTES: usize = 24;
/// The kernel lays out the descriptors of a queue as if it had so many.
const DESCRIPTORS_OF_A_QUEUE: u64 = 4096;

/// Where in a device's own file the descriptors of a queue lie.
pub fn descriptors_at(queue: u16) -> u64 {
    u64::from(queue) * DESCRIPTORS_OF_A_QUEUE * DESCRIPTOR_BYTES as u64
}

/// What the kernel wants of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The low eight bits what, the others how.
    pub operation_and_flags: u32,
    /// How much.
    pub sectors: u32,
    /// Where.
    pub first_sector: u64,
}

impl Descriptor {
    /// Of its bytes; the address behind these is the one that we gave.
    pub fn decode(bytes: &[u8; 16]) -> Self {
        Self {
            operation_and_flags: u32::from_ne_bytes(part(bytes, 0)),
            sectors: u32::from_ne_bytes(part(bytes, 4)),
            first_sector: u64::from_ne_bytes(part(bytes, 8)),
        }
    }
}

/// The operations of a descriptor (`UBLK_IO_OP_…`).
pub const OPERATION_READ: u32 = 0;
/// Data lies in the tag's memory.
pub const OPERATION_WRITE: u32 = 1;
/// Everything that was answered before is to be durable.
pub const OPERATION_FLUSH: u32 = 2;
/// The range is not needed any more.
pub const OPERATION_DISCARD: u32 = 3;
/// The range is to read as zeroes.
pub const OPERATION_WRITE_ZEROES: u32 = 5;
/// Durable when it is answered (`UBLK_IO_F_FUA`).
pub const FLAG_FUA: u32 = 1 << 13;

fn part<const LENGTH: usize>(bytes: &[u8], at: usize) -> [u8; LENGTH] {
    let mut part = [0; LENGTH];
    part.copy_from_slice(&bytes[at..at + LENGTH]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_codes_of_the_header() {
        assert_eq!(Command::Add.code(false), 0x04);
        assert_eq!(Command::Add.code(true), 0xC020_7504);
        // _IOR, not _IOWR: an older kernel must not take it for something else.
        assert_eq!(Command::GetFeatures.code(true), 0x8020_7513);
        assert_eq!(Command::UpdateSize.code(true), 0xC020_7515);
        assert_eq!(QueueCommand::Fetch.code(true), 0xC010_7520);
        assert_eq!(QueueCommand::CommitAndFetch.code(false), 0x21);
    }

    #[test]
    fn information_lies_where_the_kernel_looks() {
        let information = Information {
            queues: 4,
            depth: 32,
            state: STATE_QUIESCED,
            buffer_bytes: 1 << 18,
            number: 7,
            flags: USER_RECOVERY | USER_RECOVERY_REISSUE,
            token: 0x0123_4567_89AB_CDEF,
        };
        let bytes = information.encode();
        assert_eq!(bytes[0..8], [4, 0, 32, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[12], 7);
        assert_eq!(bytes[24], 0x18);
        assert_eq!(bytes[32..40], information.token.to_ne_bytes());
        assert_eq!(Information::decode(&bytes), information);
    }

    #[test]
    fn a_command_names_its_device_and_memory() {
        let bytes = control_bytes(3, 0x1000, 64, 99);
        assert_eq!(bytes[..8], [3, 0, 0, 0, 0xFF, 0xFF, 64, 0]);
        assert_eq!(bytes[8..24], [0, 0x10, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]);
        let bytes = queue_command_bytes(1, 5, -5, 0x2000);
        assert_eq!(bytes[..8], [1, 0, 5, 0, 0xFB, 0xFF, 0xFF, 0xFF]);
        assert_eq!(descriptors_at(2), 2 * 4096 * 24);
    }
}
