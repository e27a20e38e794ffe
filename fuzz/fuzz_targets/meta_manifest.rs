#![no_main]

terrace_fuzz_targets::target!(terrace_meta::fuzzing::manifest, terrace_meta::fuzzing::seal_manifest);
