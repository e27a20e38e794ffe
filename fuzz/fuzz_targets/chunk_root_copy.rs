#![no_main]

terrace_fuzz_targets::target!(terrace_chunk::fuzzing::root_copy, terrace_chunk::fuzzing::seal_root_copy);
