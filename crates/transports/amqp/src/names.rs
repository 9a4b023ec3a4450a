//! The names of a job at the broker: which exchange and routing key lead to which mailbox.

use lapin::ExchangeKind;
use thalweg_messages::{Mailbox, MemberId};

/// The job's name if the address has none.
const JOB: &str = "default";
const LISTENER: &str = "listener";
const MEMBER: &str = "member";
const GROUP: &str = "group";

/// The names of one job, and the type of its exchange.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// All names of the job begin with this.
    prefix: String,
    pub kind: ExchangeKind,
}

impl Names {
    /// The names of `job`. `kind` is one of the exchange types in [`crate::SETTINGS`].
    pub(crate) fn new(job: Option<&str>, kind: &str) -> Self {
        let kind = match kind {
            "direct" => ExchangeKind::Direct,
            "topic" => ExchangeKind::Topic,
            _ => ExchangeKind::Fanout,
        };
        Self { prefix: format!("thalweg.{}", job.unwrap_or(JOB)), kind }
    }

    /// The job's exchange. Its name contains its type, so a client with another setting finds no exchange.
    pub(crate) fn exchange(&self) -> String {
        let kind = match self.kind {
            ExchangeKind::Direct => "direct",
            ExchangeKind::Topic => "topic",
            _ => "fanout",
        };
        format!("{}.{kind}", self.prefix)
    }

    /// The queue of `mailbox`, which is the listener's or a member's.
    pub(crate) fn queue(&self, mailbox: Mailbox) -> String {
        format!("{}.{}", self.prefix, word(mailbox))
    }

    /// The exchange and the routing key for messages to `mailbox`.
    pub(crate) fn route(&self, mailbox: Mailbox) -> (String, String) {
        match (&self.kind, mailbox) {
            (ExchangeKind::Fanout, Mailbox::Group) => (self.exchange(), String::new()),
            // Through the default exchange, the routing key is the queue's name.
            (ExchangeKind::Fanout, one) => (String::new(), self.queue(one)),
            (_, any) => (self.exchange(), word(any)),
        }
    }

    /// The key that binds a queue to the job's exchange for messages to `mailbox`; `None` if it needs no
    /// binding.
    pub(crate) fn binding(&self, mailbox: Mailbox) -> Option<String> {
        match (&self.kind, mailbox) {
            (ExchangeKind::Fanout, Mailbox::Group) => Some(String::new()),
            (ExchangeKind::Fanout, _) => None,
            (_, any) => Some(word(any)),
        }
    }

    /// The mailbox that a routing key leads to. `None` for the group, and for a key of another program.
    pub(crate) fn owner(&self, key: &str) -> Option<Mailbox> {
        let key = key.strip_prefix(&format!("{}.", self.prefix)).unwrap_or(key);
        if key == LISTENER {
            return Some(Mailbox::Listener);
        }
        let id = key.strip_prefix(MEMBER)?.strip_prefix('.')?;
        MemberId::parse(id).map(Mailbox::Member)
    }
}

fn word(mailbox: Mailbox) -> String {
    match mailbox {
        Mailbox::Listener => LISTENER.into(),
        Mailbox::Member(id) => format!("{MEMBER}.{id}"),
        Mailbox::Group => GROUP.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_leads_back_to_its_mailbox() {
        let member = Mailbox::Member(MemberId::random().unwrap());
        for kind in ["fanout", "direct", "topic"] {
            let names = Names::new(Some("a-job"), kind);
            for mailbox in [Mailbox::Listener, member] {
                let (_, key) = names.route(mailbox);
                assert_eq!(names.owner(&key), Some(mailbox), "{kind} {key}");
            }
            assert_eq!(names.owner(&names.route(Mailbox::Group).1), None);
            assert!(names.exchange().ends_with(kind));
        }
        let names = Names::new(None, "fanout");
        assert_eq!(names.route(Mailbox::Listener), (String::new(), "thalweg.default.listener".into()));
        assert_eq!(names.owner("member.short"), None);
    }
}
