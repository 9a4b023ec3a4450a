//! The kinds of errors, as programs in other languages get them.

/// The kinds of the core's errors: those of a transport, of a lab, and of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The address cannot be used as written, or does not resolve.
    Address,
    /// The send was cancelled.
    Cancelled,
    /// The link or the object has been closed, or the link broke.
    Closed,
    /// A lab's description cannot be used.
    Config,
    /// The peer sent bytes that do not follow the protocol.
    Corrupt,
    /// The object was made in another process, of which this one is a fork.
    Forked,
    /// A signal ended the call.
    Interrupted,
    /// Another listener has the address, or another lab the name.
    InUse,
    /// Names, types or shapes of tensors cannot be used.
    Layout,
    /// No memory is left, or memory was asked for that is in use.
    Memory,
    /// An option is unknown, of the wrong type, out of range, or in conflict with another.
    Options,
    /// The system denies permission.
    Permission,
    /// The peer did not let this party in, or ended its part in the job.
    Refused,
    /// The server did not take the update.
    Rejected,
    /// A round cannot end, or the call does not fit the round.
    Round,
    /// A certificate, key or token is not trusted.
    Security,
    /// Any other error of the system.
    System,
    /// The call does not fit the task, or the task has failed.
    Task,
    /// The peer did not answer in time.
    Timeout,
    /// Nothing listens at the address, or the network does not reach it.
    Unreachable,
    /// This build, machine or transport cannot do it.
    Unsupported,
}

impl Kind {
    /// All kinds, in the order of their names.
    pub const ALL: [Self; 21] = [
        Self::Address,
        Self::Cancelled,
        Self::Closed,
        Self::Config,
        Self::Corrupt,
        Self::Forked,
        Self::Interrupted,
        Self::InUse,
        Self::Layout,
        Self::Memory,
        Self::Options,
        Self::Permission,
        Self::Refused,
        Self::Rejected,
        Self::Round,
        Self::Security,
        Self::System,
        Self::Task,
        Self::Timeout,
        Self::Unreachable,
        Self::Unsupported,
    ];

    /// The kind's name, to branch on in other languages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Cancelled => "cancelled",
            Self::Closed => "closed",
            Self::Config => "config",
            Self::Corrupt => "corrupt",
            Self::Forked => "forked",
            Self::Interrupted => "interrupted",
            Self::InUse => "inuse",
            Self::Layout => "layout",
            Self::Memory => "memory",
            Self::Options => "options",
            Self::Permission => "permission",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Round => "round",
            Self::Security => "security",
            Self::System => "system",
            Self::Task => "task",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Unsupported => "unsupported",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_name_and_stands_in_the_order_of_names() {
        let names = Kind::ALL.map(Kind::name);
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
        // A kind that is added to the type and not to `ALL` has a larger number than the last of `ALL`.
        assert_eq!(Kind::Unsupported as usize + 1, Kind::ALL.len());
    }
}
