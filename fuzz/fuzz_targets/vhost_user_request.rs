#![no_main]

terrace_fuzz_targets::target!(terrace_vhost_user::fuzzing::request);
