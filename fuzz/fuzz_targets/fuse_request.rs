#![no_main]

terrace_fuzz_targets::target!(terrace_fuse::fuzzing::request, terrace_fuse::fuzzing::seal_request);
