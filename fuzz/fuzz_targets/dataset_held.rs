#![no_main]

terrace_fuzz_targets::target!(terrace_dataset::fuzzing::held);
