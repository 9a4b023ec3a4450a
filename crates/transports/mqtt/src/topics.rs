//! The topics of a job. Several jobs share a broker, so every topic begins with a prefix and the job's name.

use thalweg_messages::{Mailbox, MemberId};

/// The topics of a job.
#[derive(Debug, Clone)]
pub(crate) struct Topics {
    base: String,
}

/// The purpose of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A mailbox.
    Mail,
    /// Retained: the identifier of the present listener. Empty when there is none.
    Here,
    /// A member's goodbye or last will.
    Goodbye(MemberId),
}

impl Topics {
    pub(crate) fn new(prefix: &str, job: &str) -> Self {
        Self { base: format!("{prefix}/{job}") }
    }

    pub(crate) fn mail(&self, mailbox: Mailbox) -> String {
        match mailbox {
            Mailbox::Listener => format!("{}/listener", self.base),
            Mailbox::Member(id) => format!("{}/member/{id}", self.base),
            Mailbox::Group => format!("{}/group", self.base),
        }
    }

    /// Retained: the latest message to the group with the chunk at this place of the model.
    pub(crate) fn model(&self, place: u64) -> String {
        format!("{}/model/{place}", self.base)
    }

    /// The filter for all places of the model.
    pub(crate) fn all_model(&self) -> String {
        format!("{}/model/+", self.base)
    }

    pub(crate) fn here(&self) -> String {
        format!("{}/here", self.base)
    }

    pub(crate) fn goodbye(&self, member: MemberId) -> String {
        format!("{}/gone/{member}", self.base)
    }

    /// The filter for the goodbyes of all members.
    pub(crate) fn all_goodbyes(&self) -> String {
        format!("{}/gone/+", self.base)
    }

    /// The purpose of a topic; `None` if it does not belong to this job.
    pub(crate) fn purpose(&self, topic: &[u8]) -> Option<Purpose> {
        let rest = topic.strip_prefix(self.base.as_bytes())?.strip_prefix(b"/")?;
        if rest == b"here" {
            return Some(Purpose::Here);
        }
        match rest.strip_prefix(b"gone/") {
            None => Some(Purpose::Mail),
            Some(id) => std::str::from_utf8(id).ok().and_then(MemberId::parse).map(Purpose::Goodbye),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_says_what_it_is_for() {
        let topics = Topics::new("thalweg", "job-1");
        let id = MemberId::random().unwrap();
        for mailbox in [Mailbox::Listener, Mailbox::Member(id), Mailbox::Group] {
            assert_eq!(topics.purpose(topics.mail(mailbox).as_bytes()), Some(Purpose::Mail));
        }
        assert_eq!(topics.purpose(topics.here().as_bytes()), Some(Purpose::Here));
        assert_eq!(topics.purpose(topics.goodbye(id).as_bytes()), Some(Purpose::Goodbye(id)));
        assert_eq!(topics.purpose(topics.model(1 << 40).as_bytes()), Some(Purpose::Mail));
        for other in ["thalweg/job-2/here", "thalweg/job-1", "thalweg/job-1/gone/you", "thalweg/job-11/here"]
        {
            assert_eq!(topics.purpose(other.as_bytes()), None, "{other}");
        }
    }
}
