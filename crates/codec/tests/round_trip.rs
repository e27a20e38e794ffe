//! What the writer wrote, the reader reads; what nobody wrote, the reader refuses without a panic.

use proptest::prelude::*;
use terrace_codec::{KeyWriter, Reader, Writer};

proptest! {
    #[test]
    fn integers_and_strings_survive(a: u64, b: i64, text in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut writer = Writer::new();
        writer.varint(a).signed_varint(b).string(&text).u64(a).i64(b);
        let bytes = writer.into_bytes();
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(reader.varint("a").unwrap(), a);
        prop_assert_eq!(reader.signed_varint("b").unwrap(), b);
        prop_assert_eq!(reader.string(300, "text").unwrap(), &text[..]);
        prop_assert_eq!(reader.u64("a").unwrap(), a);
        prop_assert_eq!(reader.i64("b").unwrap(), b);
        reader.finish().unwrap();
        for cut in 0..bytes.len() {
            let mut short = Reader::new(&bytes[..cut]);
            let read = (|| {
                short.varint("a")?;
                short.signed_varint("b")?;
                short.string(300, "text")?;
                short.u64("a")?;
                short.i64("b")
            })();
            prop_assert!(read.is_err());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut reader = Reader::new(&bytes);
        while reader.varint("x").is_ok() && reader.string(16, "y").is_ok() {}
    }

    #[test]
    fn keys_sort_as_their_fields(a: (u64, u32), b: (u64, u32)) {
        let key = |x: (u64, u32)| KeyWriter::table(7).u64(x.0).u32(x.1).finish();
        prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
    }

    #[test]
    fn after_prefix_is_the_tight_bound(prefix in proptest::collection::vec(any::<u8>(), 1..8), tail in proptest::collection::vec(any::<u8>(), 0..8)) {
        let end = KeyWriter::after_prefix(&prefix);
        let mut key = prefix.clone();
        key.extend(&tail);
        prop_assert!(end.is_empty() || key < end);
        prop_assert!(end.is_empty() || !end.starts_with(&prefix));
    }
}
