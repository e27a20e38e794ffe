//! Every integration test of this crate in one program: each program of tests links all below it, and one for each
//! file took gigabytes and most of the time of a build. A file that is not named here would not run; the house
//! (`crates/house/tests/tidy.rs`) checks that none is missing.

mod administrator;
mod asking;
mod away;
mod command_line;
mod crashes;
mod deleted_device;
mod destroy_force;
mod devices;
mod file_copies;
mod file_handles;
mod files;
mod foreign;
mod hanging;
mod harness;
mod interface;
mod landing;
mod losses;
mod many_clients;
mod memory;
mod mount_options;
mod mounts;
mod much_lost;
mod names_in_use;
mod pools;
mod rebuild;
mod remembered;
mod rewind;
mod several;
mod steering;
mod stop_force;
mod stored_pool;
mod tier_settings;
mod tiering;
mod together;
mod verify;
mod volume_attached;
mod volume_devices;
mod volume_losses;
mod volumes;
mod wiped_labels;
