//! What is said of devices that are not well: what it means, and what to type.

use terrace_device::format_size;
use terrace_pool::{DeviceInfo, SegmentRange};

use super::builder::StatusBuilder;
use crate::{
    DeviceStatus,
    reporting::{LOST_TAIL, rfc3339},
};

impl StatusBuilder {
    /// What `status` says of a device that is not well.
    pub(super) fn describe_bad_device(&self, device: &DeviceStatus) -> String {
        let known = self.devices.names.get(device.number);
        let cut_off = known.as_ref().map_or(0, |known| known.cut_off_bytes);
        if device.state != "missing" && cut_off > 0 {
            return format!(
                "device '{}' was cut short, its last {} are not there: what lay in them and has no other copy cannot be \
                 read, everything else can; give it its size back, or {} moves what can be read off it and names the rest",
                device.path,
                format_size(cut_off),
                self.ways_off(known.as_ref(), &self.devices.names.name(device.number))
            );
        }
        if let Some(since) = known.as_ref().and_then(|known| known.silent_since) {
            return format!(
                "device '{}' has not answered since {}: it is asked for nothing more until it does, what has another copy is read from \
                 there, and what was asked of it before waits with the kernel ('dmesg' may say why); mend or reconnect it, and it is used \
                 again by itself; {} moves what has another copy, once it answers or is gone",
                device.path,
                rfc3339(since),
                self.ways_off(known.as_ref(), &self.devices.names.name(device.number))
            );
        }
        if device.state != "missing" {
            let ways = self.ways_off(known.as_ref(), &self.devices.names.name(device.number));
            let why = known.and_then(|known| known.failure);
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            return format!(
                "device '{}' is {}{why}; {ways} moves what can be read off it and names the rest",
                device.path, device.state,
            );
        }
        let live = self.chunks.load_of(SegmentRange::whole(device.number)).live_bytes;
        let held = match live {
            0 => "no content was on it".to_owned(),
            live => format!(
                "{} of content was on it: what has no other copy cannot be read, everything else can; bring it back, or {} \
                 copies anew what is elsewhere and names the rest",
                format_size(live),
                self.ways_off(known.as_ref(), &device.number.to_string())
            ),
        };
        let newest = match self.chunks.end_without() {
            Some(end) if end.device == device.number => format!("; {}", LOST_TAIL),
            _ => String::new(),
        };
        format!("device '{}' is missing; {held}{newest}", device.path)
    }

    /// What to type to be rid of a device that is not well: taking it out only where the others can hold what it has.
    fn ways_off(&self, info: Option<&DeviceInfo>, name: &str) -> String {
        let pool = self.pool.name();
        let replace = format!("'terrace pool replace {pool} {name} NEW'");
        match info.is_some_and(|info| self.devices.plans.leaving(info, 0).obstacle.is_empty()) {
            true => format!("{replace}, or 'terrace pool remove {pool} {name}',"),
            false => replace,
        }
    }
}
