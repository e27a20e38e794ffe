#![no_main]

terrace_fuzz_targets::target!(terrace_pool::fuzzing::label, terrace_pool::fuzzing::seal_label);
