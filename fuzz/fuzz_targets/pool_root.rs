#![no_main]

terrace_fuzz_targets::target!(terrace_pool::fuzzing::root, terrace_pool::fuzzing::seal_root);
