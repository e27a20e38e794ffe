#![no_main]

terrace_fuzz_targets::target!(terrace_cache::fuzzing::heat);
