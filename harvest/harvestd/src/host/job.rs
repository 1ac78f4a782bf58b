//! Work that takes time, by name: what is to be done to which part of the flash.

use headstart_broker::BrokerAction;
use headstart_flash::{GssdId, VssdId};

/// A channel and its owner.
pub(crate) type Owned = (VssdId, u16);

/// Work that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// [`BrokerAction::Erase`].
    Erase(GssdId),
    /// [`BrokerAction::Evacuate`].
    Evacuate(GssdId, VssdId, u8),
    /// [`BrokerAction::Detach`].
    Detach(GssdId, VssdId, u8),
    /// [`BrokerAction::Wipe`].
    Wipe(VssdId),
    /// Two channels are to swap owners.
    Swap(Owned, Owned),
}

impl Job {
    /// The channels that it empties and erases.
    pub(crate) fn channels(&self) -> impl Iterator<Item = u16> + use<> {
        let channels = if let Self::Swap(one, other) = self { Some([one.1, other.1]) } else { None };
        channels.into_iter().flatten()
    }

    /// The action that it does, if the broker gave it out.
    pub(crate) fn action(self) -> Option<BrokerAction> {
        Some(match self {
            Self::Erase(gssd) => BrokerAction::Erase { gssd },
            Self::Evacuate(gssd, borrower, slot) => BrokerAction::Evacuate { gssd, borrower, slot },
            Self::Detach(gssd, borrower, slot) => BrokerAction::Detach { gssd, borrower, slot },
            Self::Wipe(vssd) => BrokerAction::Wipe { vssd },
            Self::Swap(..) => return None,
        })
    }
}
