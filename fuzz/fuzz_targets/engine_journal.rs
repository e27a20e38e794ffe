#![no_main]

terrace_fuzz_targets::target!(terrace_engine::fuzzing::journal);
