#![no_main]

terrace_fuzz_targets::target!(terrace_meta::fuzzing::table, terrace_meta::fuzzing::seal_table);
