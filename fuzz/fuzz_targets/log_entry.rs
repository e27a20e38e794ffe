#![no_main]

terrace_fuzz_targets::target!(terrace_log::fuzzing::entry, terrace_log::fuzzing::seal_entry);
