#![no_main]

terrace_fuzz_targets::target!(terrace_chunk::fuzzing::head_block, terrace_chunk::fuzzing::seal_head_block);
