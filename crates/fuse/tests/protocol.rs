//! The wire protocol: requests are read from any bytes without a panic, and from right bytes rightly; replies have the
//! layout of `linux/fuse.h`.

use proptest::prelude::*;
use terrace_fuse::protocol::{
    AttributeValues, Dialect, DirectoryWriter, EntryValues, InitRequest, ProtocolError, ReplyBuffer, Request,
    StatfsValues, Wishes, feature, negotiate, operation, parse,
};

const LONG: Dialect = Dialect { long_setxattr: true };

fn message(operation: u32, node: u64, body: &[u8], extensions: &[u8]) -> Vec<u8> {
    let length = (40 + body.len() + extensions.len()) as u32;
    let mut bytes = Vec::new();
    for number in [length, operation] {
        bytes.extend(number.to_ne_bytes());
    }
    for number in [7_u64, node] {
        bytes.extend(number.to_ne_bytes());
    }
    for number in [1000_u32, 100, 4321] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(((extensions.len() / 8) as u16).to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(body);
    bytes.extend(extensions);
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

fn request(operation: u32, body: Vec<u8>) -> Result<String, ProtocolError> {
    parse(&message(operation, 5, &body, &[]), LONG).map(|(_, request)| format!("{request:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), long in any::<bool>()) {
        let _ = parse(&bytes, Dialect { long_setxattr: long });
    }

    #[test]
    fn any_body_of_any_operation_is_read_without_panic(
        operation in 0_u32..60,
        body in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200),
        extensions in proptest::collection::vec(any::<u64>(), 0..5),
        claimed in proptest::option::of(any::<u32>()),
        long in any::<bool>(),
    ) {
        let mut bytes = message(operation, 1, &body, &longs(&extensions));
        if let Some(claimed) = claimed {
            bytes[..4].copy_from_slice(&(claimed % 400).to_ne_bytes());
        }
        if let Ok((_, Request::BatchForget(items))) = parse(&bytes, Dialect { long_setxattr: long }) {
            prop_assert!(items.iter().count() * 16 <= body.len());
        }
    }

    #[test]
    fn what_is_cut_short_is_refused(
        operation in prop_oneof![Just(operation::WRITE), Just(operation::SETXATTR), Just(operation::CREATE), Just(operation::RENAME2), Just(operation::IOCTL)],
        cut in 1_usize..60,
    ) {
        let body = match operation {
            operation::WRITE => [longs(&[0, 4096]), words(&[16, 0]), longs(&[0]), words(&[0, 0]), vec![9; 16]].concat(),
            operation::SETXATTR => [words(&[3, 0, 0, 0]), b"user.a\0abc".to_vec()].concat(),
            operation::IOCTL => [longs(&[0]), words(&[0, 0x4008_6602]), longs(&[0]), words(&[4, 0, 0x10])].concat(),
            operation::CREATE => [words(&[0, 0o644, 0o22, 0]), b"name\0".to_vec()].concat(),
            _ => [longs(&[9]), words(&[1, 0]), b"from\0to\0".to_vec()].concat(),
        };
        prop_assert!(request(operation, body.clone()).is_ok());
        let kept = body.len().saturating_sub(cut);
        prop_assert!(request(operation, body[..kept].to_vec()).is_err());
    }

    #[test]
    fn directory_entries_never_exceed_the_size_asked_for(
        names in proptest::collection::vec(proptest::collection::vec(1_u8..255, 1..255), 0..40),
        size in 0_u32..5000,
        plus in any::<bool>(),
    ) {
        let mut reply = ReplyBuffer::new();
        let mut added = 0;
        let mut writer = DirectoryWriter::new(&mut reply, size, plus);
        for name in &names {
            let fits = writer.fits(name.len());
            prop_assert_eq!(writer.add(1, 2, 8, name, &EntryValues::default()), fits);
            if !fits {
                break;
            }
            added += 1;
        }
        let entry = if plus { 128 } else { 0 };
        let expected: usize = names[..added].iter().map(|name| entry + (24 + name.len()).div_ceil(8) * 8).sum();
        prop_assert_eq!(reply.len(), expected);
        prop_assert!(reply.len() <= size as usize);
    }
}

#[test]
fn requests_are_read_field_by_field() {
    let (header, request) = {
        let groups = [words(&[16, 32, 1, 77])].concat();
        let bytes = message(
            operation::MKDIR,
            9,
            &[words(&[0o755, 0o22]), b"new\0".to_vec()].concat(),
            &groups,
        );
        let (header, request) = parse(&bytes, LONG).unwrap();
        (header, format!("{request:?}"))
    };
    assert_eq!(
        (header.unique, header.node, header.uid, header.gid, header.pid),
        (7, 9, 1000, 100, 4321)
    );
    assert_eq!(header.group, Some(77));
    let expected = Request::MakeDirectory {
        mode: 0o755,
        umask: 0o22,
        name: b"new",
    };
    assert_eq!(request, format!("{expected:?}"));
}

#[test]
fn a_write_carries_its_data() {
    let body = [
        longs(&[3, 8192]),
        words(&[4, 4]),
        longs(&[0]),
        words(&[0o10000, 0]),
        b"data".to_vec(),
    ]
    .concat();
    let bytes = message(operation::WRITE, 5, &body, &[]);
    let (_, request) = parse(&bytes, LONG).unwrap();
    assert_eq!(
        request,
        Request::Write {
            offset: 8192,
            data: b"data",
            write_flags: 4,
            flags: 0o10000
        }
    );
}

#[test]
fn both_forms_of_setxattr_are_read() {
    let long = message(
        operation::SETXATTR,
        5,
        &[words(&[1, 2, 1, 0]), b"user.x\0v".to_vec()].concat(),
        &[],
    );
    let short = message(
        operation::SETXATTR,
        5,
        &[words(&[1, 2]), b"user.x\0v".to_vec()].concat(),
        &[],
    );
    let expected = |kill_setgid| Request::SetExtended {
        name: b"user.x",
        value: b"v",
        flags: 2,
        kill_setgid,
    };
    assert_eq!(parse(&long, LONG).unwrap().1, expected(true));
    assert_eq!(
        parse(&short, Dialect { long_setxattr: false }).unwrap().1,
        expected(false)
    );
}

#[test]
fn names_with_slashes_or_without_an_end_are_refused() {
    for name in [&b"a/b\0"[..], b"\0", b"abc"] {
        assert_eq!(
            request(operation::LOOKUP, name.to_vec()),
            Err(ProtocolError::Name)
        );
    }
}

#[test]
fn what_is_unknown_is_told_apart_from_what_is_broken() {
    assert_eq!(request(4000, vec![1, 2, 3]).unwrap(), "Unknown");
    assert_eq!(parse(&[0; 39], LONG).unwrap_err(), ProtocolError::Truncated);
}

#[test]
fn replies_have_the_kernels_sizes() {
    let mut reply = ReplyBuffer::new();
    let attributes = AttributeValues {
        inode: 42,
        size: 3,
        mode: 0o100644,
        ..AttributeValues::default()
    };
    let size = |reply: &mut ReplyBuffer, write: &dyn Fn(&mut ReplyBuffer)| {
        reply.clear();
        write(reply);
        reply.len()
    };
    assert_eq!(
        size(&mut reply, &|reply| reply.attributes_reply(1, &attributes)),
        104
    );
    assert_eq!(
        size(&mut reply, &|reply| reply.entry(&EntryValues::default())),
        128
    );
    assert_eq!(size(&mut reply, &|reply| reply.open(0)), 16);
    assert_eq!(
        size(&mut reply, &|reply| reply.statfs(&StatfsValues::default())),
        80
    );
    assert_eq!(size(&mut reply, &|reply| reply.statx(1, &attributes)), 32 + 256);
    assert_eq!(size(&mut reply, &|reply| reply.written(9)), 8);
    let offer = InitRequest {
        major: 7,
        minor: 45,
        max_readahead: 1 << 17,
        features: u64::MAX,
    };
    let agreed = negotiate(
        &offer,
        Wishes {
            acl: true,
            ring: false,
            background: 256,
            transfer_bytes: 1 << 20,
        },
    )
    .unwrap();
    assert_eq!(size(&mut reply, &|reply| agreed.write(reply)), 64);
}

#[test]
fn an_error_has_no_payload_and_a_reply_its_own_length() {
    let mut reply = ReplyBuffer::new();
    reply.bytes(b"payload!");
    assert_eq!(reply.finish(3, libc::ENOENT).len(), 16);
    let message = reply.finish(3, 0);
    assert_eq!(message.len(), 24);
    assert_eq!(message[..4], 24_u32.to_ne_bytes());
    assert_eq!(message[8..16], 3_u64.to_ne_bytes());
    assert_eq!(&message[16..], b"payload!");
}

#[test]
fn a_reply_that_grew_too_long_becomes_an_error() {
    let mut reply = ReplyBuffer::new();
    let half = vec![1; 600 * 1024];
    reply.bytes(&half);
    reply.bytes(&half);
    let message = reply.finish(3, 0);
    assert_eq!(message.len(), 16);
    assert_eq!(message[4..8], (-libc::EIO).to_ne_bytes());
}

#[test]
fn nothing_is_agreed_that_was_not_offered_or_that_breaks_a_guarantee() {
    let wishes = Wishes {
        acl: true,
        ring: false,
        background: 256,
        transfer_bytes: 1 << 20,
    };
    let everything = InitRequest {
        major: 7,
        minor: 99,
        max_readahead: 1 << 30,
        features: u64::MAX,
    };
    let agreed = negotiate(&everything, wishes).unwrap();
    assert_eq!(agreed.minor, 45);
    assert!(
        agreed.has(
            feature::HANDLE_KILLPRIV_V2 | feature::POSIX_ACL | feature::MAX_PAGES | feature::ALLOW_IDMAP
        )
    );
    for never in [
        feature::WRITEBACK_CACHE,
        feature::AUTO_INVAL_DATA,
        feature::POSIX_LOCKS,
        feature::ATOMIC_O_TRUNC,
    ] {
        assert!(!agreed.has(never));
    }
    assert_eq!(agreed.max_write, 1 << 20);
    let spare = negotiate(
        &everything,
        Wishes {
            transfer_bytes: 128 << 10,
            ..wishes
        },
    )
    .unwrap();
    assert_eq!((spare.max_write, spare.max_readahead), (128 << 10, 128 << 10));
    let old = InitRequest {
        major: 7,
        minor: 31,
        max_readahead: 4096,
        features: feature::BIG_WRITES,
    };
    let agreed = negotiate(&old, wishes).unwrap();
    assert_eq!(
        (agreed.minor, agreed.features, agreed.max_write),
        (31, feature::BIG_WRITES, 128 << 10)
    );
    for (major, minor) in [(7, 30), (8, 0), (6, 31)] {
        assert!(
            negotiate(
                &InitRequest {
                    major,
                    minor,
                    ..everything
                },
                wishes
            )
            .is_none()
        );
    }
}
