//! The table of signatures: what foreign formats have at fixed places.
//!
//! The places are facts of the formats, as their specifications and headers state them. Order decides where several fit: members of
//! arrays and encrypted volumes first, since these may have a filesystem's superblock at its usual place; short signatures last.
//!
//! Invariant: a name is a help only. Whether a device is refused does not hang on it unless the signature lies outside of the first and
//! last MiB.

use super::{
    details::{self, Detail},
    ends::Ends,
};

/// Where a signature lies.
enum Place {
    /// So many bytes from the start.
    At(u64),
    /// So many bytes before the end.
    BeforeEnd(u64),
    /// At any multiple of this, plus an offset, in the last MiB: `(step, offset)`.
    InLast(u64, u64),
    /// The same in the first and the last MiB.
    InEdges(u64, u64),
}

use Place::{At, BeforeEnd, InEdges, InLast};

/// A format, by one of its signatures.
struct Magic {
    /// With its article.
    name: &'static str,
    place: Place,
    bytes: &'static [u8],
    detail: Option<Detail>,
}

const fn plain(name: &'static str, place: Place, bytes: &'static [u8]) -> Magic {
    Magic {
        name,
        place,
        bytes,
        detail: None,
    }
}

const fn with(name: &'static str, place: Place, bytes: &'static [u8], detail: Detail) -> Magic {
    Magic {
        name,
        place,
        bytes,
        detail: Some(detail),
    }
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * 1024;

/// What is left of Terrace itself where no label can be read.
const OWN: &[Magic] = &[
    plain(
        "a label of a Terrace pool, damaged or of another version",
        At(0),
        b"TERRLABL",
    ),
    plain(
        "a label of a Terrace pool, damaged or of another version",
        At(64 * KIB),
        b"TERRLABL",
    ),
    plain(
        "a label of a Terrace pool, damaged or of another version",
        InLast(4 * KIB, 0),
        b"TERRLABL",
    ),
    plain("a root record of a Terrace pool", At(256 * KIB), b"TERRROOT"),
    plain("a root record of a Terrace pool", At(384 * KIB), b"TERRROOT"),
    plain("a root record of a Terrace pool", At(512 * KIB), b"TERRROOT"),
    plain("a root record of a Terrace pool", At(640 * KIB), b"TERRROOT"),
];

const MEMBERS: &[Magic] = &[
    with(
        "a member of a Linux software RAID (mdadm)",
        At(0),
        &[0xfc, 0x4e, 0x2b, 0xa9],
        details::md,
    ),
    with(
        "a member of a Linux software RAID (mdadm)",
        At(4 * KIB),
        &[0xfc, 0x4e, 0x2b, 0xa9],
        details::md,
    ),
    with(
        "a member of a Linux software RAID (mdadm)",
        InLast(4 * KIB, 0),
        &[0xfc, 0x4e, 0x2b, 0xa9],
        details::md,
    ),
    plain(
        "a member of a Linux software RAID (mdadm)",
        InLast(64 * KIB, 0),
        &[0xa9, 0x2b, 0x4e, 0xfc],
    ),
    plain(
        "a member of an Intel firmware RAID",
        InLast(512, 0),
        b"Intel Raid ISM Cfg Sig. ",
    ),
    plain(
        "a member of a firmware RAID (DDF)",
        InLast(512, 0),
        &[0xde, 0x11, 0xde, 0x11],
    ),
    plain("a member of an LSI MegaRAID", BeforeEnd(512), b"$XIDE$"),
    plain("a member of an NVIDIA RAID", BeforeEnd(1024), b"NVIDIA"),
    plain(
        "a member of a Promise FastTrak RAID",
        InLast(512, 0),
        b"Promise Technology, Inc.",
    ),
    plain(
        "a member of a HighPoint RAID",
        At(9 * 512 + 32),
        &[0xf0, 0x16, 0x78, 0x5a],
    ),
    plain(
        "a member of a HighPoint RAID",
        At(9 * 512 + 32),
        &[0xfd, 0x16, 0x78, 0x5a],
    ),
    with(
        "a member of a ZFS pool",
        InEdges(KIB, 0),
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
        details::zfs,
    ),
    with(
        "a member of a ZFS pool",
        InEdges(KIB, 0),
        &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c],
        details::zfs,
    ),
    plain("a physical volume of LVM", At(0), b"LABELONE"),
    plain("a physical volume of LVM", At(512), b"LABELONE"),
    plain("a physical volume of LVM", At(1024), b"LABELONE"),
    plain("a physical volume of LVM", At(1536), b"LABELONE"),
    plain("a physical volume of LVM1", At(0), &[b'H', b'M', 1, 0]),
    plain("a physical volume of LVM1", At(0), &[b'H', b'M', 2, 0]),
    with("a LUKS volume", At(0), b"LUKS\xba\xbe", details::luks),
    plain(
        "a LUKS volume with a damaged first header",
        At(16 * KIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(32 * KIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(64 * KIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(128 * KIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(256 * KIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(512 * KIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(MIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(2 * MIB),
        b"SKUL\xba\xbe",
    ),
    plain(
        "a LUKS volume with a damaged first header",
        At(4 * MIB),
        b"SKUL\xba\xbe",
    ),
    plain("a BitLocker volume", At(3), b"-FVE-FS-"),
    plain(
        "a bcache device",
        At(4 * KIB + 24),
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
        ],
    ),
    with(
        "a bcachefs filesystem",
        At(4 * KIB + 24),
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef,
        ],
        details::bcachefs,
    ),
    plain("a Ceph BlueStore device", At(0), b"bluestore block device"),
    plain(
        "a device of a Stratis pool",
        At(512 + 4),
        b"!Stra0tis\x86\xff\x02^Arh",
    ),
    plain(
        "a device of a Stratis pool",
        At(9 * 512 + 4),
        b"!Stra0tis\x86\xff\x02^Arh",
    ),
    plain("DRBD metadata", InLast(4 * KIB, 60), &[0x83, 0x74, 0x02, 0x6a]),
    plain("DRBD metadata", InLast(4 * KIB, 60), &[0x83, 0x74, 0x02, 0x6b]),
    plain("DRBD metadata", InLast(4 * KIB, 60), &[0x83, 0x74, 0x02, 0x6c]),
    plain("DRBD metadata", InLast(4 * KIB, 60), &[0x83, 0x74, 0x02, 0x6d]),
    plain("a VDO volume", At(0), b"dmvdo001"),
    plain("a dm-integrity device", At(0), b"integrt\0"),
    plain("a dm-verity hash device", At(0), b"verity\0\0"),
    plain("a device-mapper snapshot", At(0), b"SnAp"),
    plain("an Oracle ASM disk", At(32), b"ORCLDISK"),
    plain("a VMFS volume", At(MIB), &[0x0d, 0xd0, 0x01, 0xc0]),
    plain("a VMFS volume", At(2 * MIB), &[0x5e, 0xf1, 0xab, 0x2f]),
];

const FILESYSTEMS: &[Magic] = &[
    with("an XFS filesystem", At(0), b"XFSB", details::xfs),
    plain("an external XFS log", At(0), &[0xfe, 0xed, 0xba, 0xbe]),
    with(
        "a Btrfs filesystem",
        At(64 * KIB + 64),
        b"_BHRfS_M",
        details::btrfs,
    ),
    with(
        "an F2FS filesystem",
        At(KIB),
        &[0x10, 0x20, 0xf5, 0xf2],
        details::f2fs,
    ),
    plain("an exFAT filesystem", At(3), b"EXFAT   "),
    plain("an NTFS filesystem", At(3), b"NTFS    "),
    plain("a ReFS filesystem", At(0), b"\0\0\0ReFS\0"),
    with("a FAT filesystem", At(82), b"FAT32   ", details::fat32),
    with("a FAT filesystem", At(54), b"FAT16   ", details::fat16),
    with("a FAT filesystem", At(54), b"FAT12   ", details::fat16),
    with("a FAT filesystem", At(54), b"FAT     ", details::fat16),
    plain(
        "an HPFS filesystem",
        At(8 * KIB),
        &[0x49, 0xe8, 0x95, 0xf9, 0xc5, 0xe9, 0x53, 0xfa],
    ),
    with("swap space", At(4 * KIB - 10), b"SWAPSPACE2", details::swap),
    with("swap space", At(8 * KIB - 10), b"SWAPSPACE2", details::swap),
    with("swap space", At(16 * KIB - 10), b"SWAPSPACE2", details::swap),
    with("swap space", At(32 * KIB - 10), b"SWAPSPACE2", details::swap),
    with("swap space", At(64 * KIB - 10), b"SWAPSPACE2", details::swap),
    plain("swap space", At(4 * KIB - 10), b"SWAP-SPACE"),
    plain(
        "a hibernated system in swap space",
        At(4 * KIB - 10),
        b"S1SUSPEND",
    ),
    plain(
        "a hibernated system in swap space",
        At(4 * KIB - 10),
        b"S2SUSPEND",
    ),
    plain(
        "a hibernated system in swap space",
        At(4 * KIB - 10),
        b"ULSUSPEND",
    ),
    plain(
        "a hibernated system in swap space",
        At(4 * KIB - 10),
        b"LINHIB0001",
    ),
    plain("a ReiserFS filesystem", At(64 * KIB + 52), b"ReIsErFs"),
    plain("a ReiserFS filesystem", At(64 * KIB + 52), b"ReIsEr2Fs"),
    plain("a ReiserFS filesystem", At(64 * KIB + 52), b"ReIsEr3Fs"),
    plain("a ReiserFS filesystem", At(8 * KIB + 52), b"ReIsErFs"),
    plain("a Reiser4 filesystem", At(64 * KIB), b"ReIsEr4"),
    plain("a JFS filesystem", At(32 * KIB), b"JFS1"),
    plain("a GFS2 filesystem", At(64 * KIB), &[0x01, 0x16, 0x19, 0x70]),
    plain("an OCFS2 filesystem", At(KIB), b"OCFSV2"),
    plain("an OCFS2 filesystem", At(2 * KIB), b"OCFSV2"),
    plain("an OCFS2 filesystem", At(4 * KIB), b"OCFSV2"),
    plain("an OCFS2 filesystem", At(8 * KIB), b"OCFSV2"),
    plain("an OCFS filesystem", At(8), b"OracleCFS"),
    plain("an APFS container", At(32), b"NXSB"),
    plain("an HFS+ filesystem", At(KIB), &[b'H', b'+', 0, 4]),
    plain("an HFSX filesystem", At(KIB), &[b'H', b'X', 0, 5]),
    with("a SquashFS filesystem", At(0), b"hsqs", details::squashfs),
    plain("a SquashFS filesystem", At(0), b"sqsh"),
    with(
        "an EROFS filesystem",
        At(KIB),
        &[0xe2, 0xe1, 0xf5, 0xe0],
        details::erofs,
    ),
    plain("a cramfs filesystem", At(0), &[0x45, 0x3d, 0xcd, 0x28]),
    plain("a cramfs filesystem", At(0), &[0x28, 0xcd, 0x3d, 0x45]),
    plain("a romfs filesystem", At(0), b"-rom1fs-"),
    plain("a UBI volume", At(0), b"UBI#"),
    plain("a UBIFS filesystem", At(0), &[0x31, 0x18, 0x10, 0x06]),
    plain("a zonefs filesystem", At(0), b"SFOZ"),
    plain("a VxFS filesystem", At(KIB), &[0xf5, 0xfc, 0x01, 0xa5]),
    plain("a VxFS filesystem", At(8 * KIB), &[0xa5, 0x01, 0xfc, 0xf5]),
    plain("a UFS filesystem", At(8 * KIB + 0x55c), &[0x54, 0x19, 0x01, 0x00]),
    plain("a UFS filesystem", At(8 * KIB + 0x55c), &[0x00, 0x01, 0x19, 0x54]),
    plain(
        "a UFS filesystem",
        At(64 * KIB + 0x55c),
        &[0x19, 0x01, 0x54, 0x19],
    ),
    plain(
        "a UFS filesystem",
        At(64 * KIB + 0x55c),
        &[0x19, 0x54, 0x01, 0x19],
    ),
    plain("a BeFS filesystem", At(512 + 32), b"1SFB"),
    plain("a BeFS filesystem", At(32), b"BFS1"),
    with("an ISO 9660 filesystem", At(32 * KIB + 1), b"CD001", details::iso),
    plain("a High Sierra filesystem", At(32 * KIB + 9), b"CDROM"),
    plain("a UDF filesystem", At(32 * KIB + 1), b"BEA01"),
    plain("a UDF filesystem", At(34 * KIB + 1), b"NSR02"),
    plain("a UDF filesystem", At(34 * KIB + 1), b"NSR03"),
    plain("a UDF filesystem", At(36 * KIB + 1), b"NSR02"),
    plain("a UDF filesystem", At(36 * KIB + 1), b"NSR03"),
];

const IMAGES: &[Magic] = &[
    with(
        "a qcow2 image of a virtual disk",
        At(0),
        b"QFI\xfb",
        details::qcow,
    ),
    plain("a QED image of a virtual disk", At(0), b"QED\0"),
    plain("a VMDK image of a virtual disk", At(0), b"KDMV"),
    plain("a VMDK image of a virtual disk", At(0), b"COWD"),
    plain("a VMDK image of a virtual disk", At(0), b"# Disk DescriptorFile"),
    plain("a VDI image of a virtual disk", At(64), &[0x7f, 0x10, 0xda, 0xbe]),
    plain("a VHDX image of a virtual disk", At(0), b"vhdxfile"),
    plain("a VHD image of a virtual disk", At(0), b"conectix"),
    plain("a VHD image of a virtual disk", BeforeEnd(512), b"conectix"),
    plain("a VHD image of a virtual disk", BeforeEnd(511), b"conectix"),
    plain("a Parallels image of a virtual disk", At(0), b"WithoutFreeSpace"),
    plain("a Parallels image of a virtual disk", At(0), b"WithouFreSpacExt"),
    plain("a DMG image", BeforeEnd(512), b"koly"),
];

const FILES: &[Magic] = &[
    plain("a tar archive", At(257), b"ustar"),
    plain("a zip archive", At(0), b"PK\x03\x04"),
    plain("a zip archive", At(0), b"PK\x05\x06"),
    plain("a 7z archive", At(0), &[b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c]),
    plain("a RAR archive", At(0), b"Rar!\x1a\x07"),
    plain("xz-compressed data", At(0), &[0xfd, b'7', b'z', b'X', b'Z', 0]),
    plain("zstd-compressed data", At(0), &[0x28, 0xb5, 0x2f, 0xfd]),
    plain("lz4-compressed data", At(0), &[0x04, 0x22, 0x4d, 0x18]),
    plain("bzip2-compressed data", At(0), b"BZh"),
    plain("gzip-compressed data", At(0), &[0x1f, 0x8b, 0x08]),
    plain("lzip-compressed data", At(0), b"LZIP"),
    plain("a cpio archive", At(0), b"070701"),
    plain("a cpio archive", At(0), b"070702"),
    plain("a cpio archive", At(0), b"070707"),
    plain("an ar archive or Debian package", At(0), b"!<arch>\n"),
    plain("an RPM package", At(0), &[0xed, 0xab, 0xee, 0xdb]),
    plain("a cabinet archive", At(0), b"MSCF\0\0\0\0"),
    plain("a Git pack", At(0), b"PACK\0\0\0"),
    plain("a Borg repository segment", At(0), b"BORG_SEG"),
    plain("an SQLite database", At(0), b"SQLite format 3\0"),
    plain("a Berkeley DB", At(12), &[0x62, 0x31, 0x05, 0x00]),
    plain("a Berkeley DB", At(12), &[0x61, 0x15, 0x06, 0x00]),
    plain("an LMDB database", At(16), &[0xde, 0xc0, 0xef, 0xbe]),
    plain("an HDF5 file", At(0), b"\x89HDF\r\n\x1a\n"),
    plain("a Parquet file", At(0), b"PAR1"),
    plain("a PDF document", At(0), b"%PDF-"),
    plain("an ELF program", At(0), b"\x7fELF"),
    plain("a PNG picture", At(0), b"\x89PNG\r\n\x1a\n"),
    plain("a JPEG picture", At(0), &[0xff, 0xd8, 0xff]),
    plain("a GIF picture", At(0), b"GIF8"),
    plain("a RIFF file (WAV, AVI, WebP)", At(0), b"RIFF"),
    plain("an MP4 or QuickTime film", At(4), b"ftyp"),
    plain("a Matroska or WebM film", At(0), &[0x1a, 0x45, 0xdf, 0xa3]),
    plain("an Ogg file", At(0), b"OggS"),
    plain("a FLAC file", At(0), b"fLaC"),
    plain("an MP3 file", At(0), b"ID3"),
    plain("a program for Windows or DOS", At(0), b"MZ"),
    plain("a file encrypted by age", At(0), b"age-encryption.org/"),
    plain("a file encrypted by OpenSSL", At(0), b"Salted__"),
    plain("a script", At(0), b"#!/"),
];

/// Short ones, or such as lie before what is in them.
const LAST: &[Magic] = &[
    with(
        "an ext2, ext3 or ext4 filesystem",
        At(KIB + 56),
        &[0x53, 0xef],
        details::ext,
    ),
    plain("a NILFS2 filesystem", At(KIB + 6), &[0x34, 0x34]),
    with("a partition table (GPT)", At(512), b"EFI PART", details::gpt),
    with("a partition table (GPT)", At(4 * KIB), b"EFI PART", details::gpt),
    plain(
        "the second copy of a partition table (GPT)",
        BeforeEnd(512),
        b"EFI PART",
    ),
    plain(
        "the second copy of a partition table (GPT)",
        BeforeEnd(4 * KIB),
        b"EFI PART",
    ),
    plain("a partition table (Apple)", At(512), b"PM\0\0"),
    plain("a partition table (BSD)", At(512), &[0x57, 0x45, 0x56, 0x82]),
    plain("a partition table (SGI)", At(0), &[0x0b, 0xe5, 0xa9, 0x41]),
    plain("a partition table (Sun)", At(508), &[0xda, 0xbe]),
    plain("a partition table (Amiga)", At(0), b"RDSK"),
    plain("an HFS filesystem", At(KIB), b"BD"),
    plain("a minix filesystem", At(KIB + 16), &[0x7f, 0x13]),
    plain("a minix filesystem", At(KIB + 16), &[0x8f, 0x13]),
    plain("a minix filesystem", At(KIB + 16), &[0x68, 0x24]),
    plain("a minix filesystem", At(KIB + 16), &[0x78, 0x24]),
    plain("a minix filesystem", At(KIB + 24), &[0x5a, 0x4d]),
    with(
        "a boot sector or partition table (MBR)",
        At(510),
        &[0x55, 0xaa],
        details::mbr,
    ),
];

/// The first format of the table that fits, in words.
pub(super) fn recognise(ends: &Ends) -> Option<String> {
    let tables = [OWN, MEMBERS, FILESYSTEMS, IMAGES, FILES, LAST];
    tables.into_iter().flatten().find_map(|magic| magic.found(ends))
}

impl Magic {
    /// The format in words, if its signature is there.
    fn found(&self, ends: &Ends) -> Option<String> {
        let fits = |offset: u64| ends.at(offset, self.bytes.len()) == Some(self.bytes);
        let at = match self.place {
            At(offset) => fits(offset).then_some(offset),
            BeforeEnd(back) => {
                let there = ends.before_end(back, self.bytes.len()) == Some(self.bytes);
                there.then(|| ends.size_bytes - back)
            }
            InLast(step, offset) => ends.last_edge(step).map(|at| at + offset).find(|at| fits(*at)),
            InEdges(step, offset) => ends.edges(step).map(|at| at + offset).find(|at| fits(*at)),
        }?;
        match self.detail {
            None => Some(self.name.to_owned()),
            Some(detail) => Some(detail(ends, at, self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_found_at_its_place_and_nowhere_else() {
        const SIZE: usize = 8 << 20;
        let tables = [OWN, MEMBERS, FILESYSTEMS, IMAGES, FILES, LAST];
        let mut known = std::collections::BTreeSet::new();
        for magic in tables.into_iter().flatten() {
            let offsets = match magic.place {
                At(offset) => vec![offset],
                BeforeEnd(back) => vec![SIZE as u64 - back],
                InLast(step, offset) => vec![SIZE as u64 - step + offset],
                InEdges(step, offset) => vec![128 * KIB + step + offset, SIZE as u64 - step + offset],
            };
            for offset in offsets {
                let mut image = vec![0; SIZE];
                let at = offset as usize;
                image[at..at + magic.bytes.len()].copy_from_slice(magic.bytes);
                let read = |from: u64, buffer: &mut [u8]| {
                    buffer.copy_from_slice(&image[from as usize..from as usize + buffer.len()]);
                    Ok(buffer.len())
                };
                let ends = Ends::read(SIZE as u64, SIZE as u64, &read).unwrap();
                let found = recognise(&ends).unwrap_or_default();
                let first_word = magic.name.split(" (").next().unwrap();
                let is_ext = magic.name.starts_with("an ext2");
                assert!(
                    found.starts_with(first_word) || is_ext && found.contains("an ext2"),
                    "{} at {offset}: {found}",
                    magic.name
                );
            }
            known.insert(magic.name);
        }
        assert!(known.len() > 100, "{}", known.len());
    }
}
