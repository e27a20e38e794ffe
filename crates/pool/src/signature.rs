//! Recognising what else a device may hold, so that making a pool does not wipe a filesystem by a slip.

use terrace_device::{AlignedBuffer, Device, DeviceError};

/// Bytes from the start that are looked at: covers the superblocks of all filesystems below.
const LOOK_BYTES: u64 = 128 * 1024;

/// Name, offset in bytes, bytes.
const SIGNATURES: [(&str, usize, &[u8]); 10] = [
    ("an ext2, ext3 or ext4 filesystem", 1024 + 0x38, &[0x53, 0xef]),
    ("an XFS filesystem", 0, b"XFSB"),
    ("a Btrfs filesystem", 0x10040, b"_BHRfS_M"),
    ("an F2FS filesystem", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an NTFS filesystem", 3, b"NTFS    "),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM volume", 512, b"LABELONE"),
    ("a partition table", 512, b"EFI PART"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a boot sector or partition table", 510, &[0x55, 0xaa]),
];

/// What the device seems to hold, in words; `None` if nothing is recognised.
pub(crate) fn recognise(device: &dyn Device) -> Result<Option<&'static str>, DeviceError> {
    let mut front = AlignedBuffer::zeroed(device.size_bytes().min(LOOK_BYTES) as usize);
    device.read_at(0, &mut front)?;
    let found = SIGNATURES
        .iter()
        .find(|(_, offset, bytes)| front.get(*offset..*offset + bytes.len()) == Some(*bytes));
    Ok(found.map(|(name, _, _)| *name))
}
