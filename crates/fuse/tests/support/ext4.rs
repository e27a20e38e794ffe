//! An ext4 filesystem in a file, mounted through a loop device: what is right by definition.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Mounted as long as this lives.
pub struct Ext4 {
    directory: tempfile::TempDir,
}

impl Ext4 {
    /// Makes and mounts one; `None`, with the reason printed, where that cannot be.
    pub fn mounted() -> Option<Self> {
        let this = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        let image = this.directory.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        std::fs::create_dir(this.root()).unwrap();
        std::fs::set_permissions(
            this.directory.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let made = run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let mount = || {
            run(Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(this.root()))
        };
        match made.and_then(|()| mount()) {
            Ok(()) => Some(this),
            Err(reason) => {
                println!("skipped: no ext4 to compare with: {reason}");
                None
            }
        }
    }

    /// Where it is mounted.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let root: &Path = &self.root();
        // A process that another test is just starting may hold copies of our open files.
        for _ in 0..500 {
            if run(Command::new("umount").arg(root)).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
        let _ = run(Command::new("umount").arg("-l").arg(root));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
