#![no_main]

terrace_fuzz_targets::target!(terrace_meta::fuzzing::preface, terrace_meta::fuzzing::seal_preface);
