#![no_main]

terrace_fuzz_targets::target!(terrace_chunk::fuzzing::header, terrace_chunk::fuzzing::seal_header);
