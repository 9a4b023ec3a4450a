//! Clients whose home is at another node of an aggregation tree, and those that have come from one.
//!
//! Who belongs where is the root's to decide. A node knows where all other clients of the job belong, so it can send one
//! there that has lost its home. Of those that it takes over it knows whose update had been counted, and in which round they
//! may have been: an update that counted at the old node is answered, and its client takes no part in that round again.

use std::collections::BTreeMap;

use serde::Deserialize;
use thalweg_wire::control::{Control, MAX_OTHERS};

use super::{LinkId, Server};
use crate::Time;

/// Where the clients of a job belong, as a node has to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Homes {
    /// By the names of clients of other nodes: where these listen.
    pub elsewhere: BTreeMap<String, String>,
    /// Where other nodes listen, of which clients are told. At most [`MAX_OTHERS`] are used.
    pub others: Vec<String>,
    /// By the names of clients that came from other nodes: the last round that they may have been counted in.
    pub after: BTreeMap<String, u32>,
    /// By the names of clients: the last round that their update was counted in.
    pub counted: BTreeMap<String, u32>,
}

impl Server {
    /// The root has decided where clients belong. Those that belong elsewhere are sent there.
    pub fn place_clients(&mut self, now: Time, mut homes: Homes) {
        homes.others.truncate(MAX_OTHERS);
        let is_news = homes.others != self.homes.others;
        self.homes = homes;
        let members = self.roster.members().values();
        let connected: Vec<(LinkId, String)> =
            members.filter_map(|m| Some((m.link?, m.name.clone()))).collect();
        for (link, name) in connected {
            if let Some(sender) = self.roster.named(&name).filter(|_| self.is_elsewhere(&name)) {
                self.gone(sender);
                self.send_elsewhere(now, link, &name);
            } else if is_news {
                self.tell_others(link);
            }
        }
        self.advance(now);
    }

    pub(super) fn is_elsewhere(&self, client: &str) -> bool {
        self.homes.elsewhere.contains_key(client)
    }

    pub(super) fn send_elsewhere(&mut self, now: Time, link: LinkId, client: &str) {
        let Some(url) = self.homes.elsewhere.get(client).cloned() else { return };
        let reason = format!("its home is at {url}");
        self.roster.send(link, Control::Elsewhere { url });
        self.drop_link(now, link, &reason);
        self.roster.close(link);
    }

    pub(super) fn tell_others(&mut self, link: LinkId) {
        if !self.homes.others.is_empty() {
            self.roster.send(link, Control::Others { urls: self.homes.others.clone() });
        }
    }

    /// Whether a client may take part in a round: it may have been in it at the node that it came from.
    pub(super) fn is_late_for(&self, client: &str, round: u32) -> bool {
        self.homes.after.get(client).is_some_and(|&last| round <= last)
    }

    /// Whether a client's update of a round was counted at the node that it came from.
    pub(super) fn was_counted(&self, sender: u32, round: u32) -> bool {
        let name = self.roster.member(sender).map(|member| &member.name);
        name.and_then(|name| self.homes.counted.get(name)) == Some(&round)
    }
}
