//! Whether reservations fit into quotas: a reservation that a quota, of its own or above, does not let be used is a mistake.

use terrace_device::format_size;

use super::property_service::PropertyService;
use crate::settings::DatasetError;

impl PropertyService {
    /// Whether a dataset, or a new one, may reserve so much.
    pub(crate) fn check_reservation(&self, name: &str, bytes: u64) -> Result<(), DatasetError> {
        let mut above = Some(name);
        while let Some(at) = above {
            let node = self.registry.get(at);
            let quota = node.and_then(|node| node.state.settings().quota_bytes);
            if let Some(quota) = quota.filter(|quota| bytes > *quota) {
                return Err(above_quota(name, bytes, at, quota));
            }
            above = crate::settings::parent(at);
        }
        let usage_of = |name: &str| {
            let node = self.registry.get(name);
            node.map(|node| node.state.usage().clone())
        };
        // A new one takes it of the quotas above.
        let (more, left) = match usage_of(name) {
            Some(own) => (own.more_of_quota(bytes), own.quota_left_bytes()),
            None => {
                let above = crate::settings::parent(name).and_then(usage_of);
                (bytes, above.and_then(|above| above.quota_left_bytes()))
            }
        };
        match left {
            Some(left) if more > left => Err(DatasetError::PropertyRefused(format!(
                "the reservation of '{name}' would take {} more of the quotas of it and of the datasets above, which leave {}; \
                 reserve less, or raise the quota",
                format_size(more),
                format_size(left)
            ))),
            _ => Ok(()),
        }
    }

    /// The same seen from a quota that is to be set.
    pub(super) fn check_quota(&self, name: &str, quota_bytes: Option<u64>) -> Result<(), DatasetError> {
        let Some(quota) = quota_bytes else { return Ok(()) };
        let tree = self.registry.tree(name);
        // What files have preallocated is written whatever the quota, as what is used already stays.
        let mut reserves = false;
        for (below, node) in tree {
            let reserved = node.state.usage().reservation_bytes();
            reserves |= reserved > 0;
            if reserved > quota {
                return Err(above_quota(&below, reserved, name, quota));
            }
        }
        let node = self.registry.node(name)?;
        let usage = node.state.usage();
        let taken = usage.taken_of_quotas_bytes();
        // More of it than now is welcome, though not enough.
        let is_less = usage.quota_bytes().is_none_or(|now| quota < now);
        if is_less && reserves && usage.promised_bytes() > 0 && taken > quota {
            return Err(DatasetError::PropertyRefused(format!(
                "with what is reserved there, '{name}' takes {}, which would be above its quota, {}; give it at least \
                 that quota, or reserve less below it",
                format_size(taken),
                format_size(quota)
            )));
        }
        Ok(())
    }

    /// Whether what is renamed fits into the quotas that begin to count it.
    pub(crate) fn check_rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        let taken = self.registry.node(from)?.state.usage().taken_of_quotas_bytes();
        let counts_it = |above: &&str| from.starts_with(&format!("{above}/"));
        let mut above =
            std::iter::successors(crate::settings::parent(to), |name| crate::settings::parent(name))
                .take_while(|above| !counts_it(above));
        above.try_for_each(|above| {
            let node = self.registry.node(above)?;
            let usage = node.state.usage();
            let left = |quota: u64| quota.saturating_sub(usage.taken_of_quotas_bytes());
            match usage.quota_bytes().map(left) {
                Some(left) if taken > left => Err(DatasetError::Refused(format!(
                    "'{from}' takes {}, with what is reserved there, and the quota of '{above}' leaves {}; raise the quota \
                     ('terrace set quota=… {above}'), or make '{from}' smaller",
                    format_size(taken),
                    format_size(left)
                ))),
                _ => Ok(()),
            }
        })
    }
}

pub(crate) fn above_quota(name: &str, reservation_bytes: u64, at: &str, quota_bytes: u64) -> DatasetError {
    DatasetError::PropertyRefused(format!(
        "the reservation of '{name}', {}, would be above the quota of '{at}', {}; reserve less ('terrace set \
         reservation={} {name}', or --sparse for a new volume) or raise the quota",
        format_size(reservation_bytes),
        format_size(quota_bytes),
        terrace_device::exact_size(quota_bytes),
    ))
}
