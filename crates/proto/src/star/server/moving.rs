//! Clients whose home is another node of an aggregation tree, and clients that have moved here from one.
//!
//! The root decides at which node each client belongs. Each node knows the homes of all clients of the job,
//! so it can redirect a client that has lost its home. For each client that it takes over, a node knows in
//! which rounds the client may have been counted, and whether an update was. If an update counted at the old
//! node, this node confirms it. The client takes no part in that round again.

use std::collections::BTreeMap;

use serde::Deserialize;
use thalweg_wire::control::{Control, MAX_OTHERS};

use super::{LinkId, Server, ServerMachine};
use crate::Time;

/// What a node of a tree knows of each client of the job: its home, the node that it belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Homes {
    /// The URL of the home of each client of another node, by the client's name.
    pub elsewhere: BTreeMap<String, String>,
    /// URLs of the other nodes, which clients are told. At most [`MAX_OTHERS`] are used.
    pub others: Vec<String>,
    /// For clients that came from other nodes, by name: the last round in which they may have been counted
    /// there.
    pub after: BTreeMap<String, u32>,
    /// For each client, by name: the last round in which its update was counted.
    pub counted: BTreeMap<String, u32>,
}

impl Server {
    /// Stores the root's decision. Clients that belong to other nodes are sent there.
    pub fn place_clients(&mut self, now: Time, mut homes: Homes) {
        homes.others.truncate(MAX_OTHERS);
        let is_news = homes.others != self.homes.others;
        self.homes = homes;
        let members = self.roster.members().values();
        let connected: Vec<(LinkId, String)> =
            members.filter_map(|m| Some((m.link?, m.name.clone()))).collect();
        for (link, name) in connected {
            if let Some(sender) = self.roster.named(&name).filter(|_| self.is_elsewhere(&name)) {
                self.mark_departed(sender);
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
        self.end_link(now, link, &reason);
    }

    pub(super) fn tell_others(&mut self, link: LinkId) {
        if !self.homes.others.is_empty() {
            self.roster.send(link, Control::Others { urls: self.homes.others.clone() });
        }
    }

    /// Whether a client may not take part in a round, because it may have taken part at the node that it came
    /// from.
    pub(super) fn is_late_for(&self, client: &str, round: u32) -> bool {
        self.homes.after.get(client).is_some_and(|&last| round <= last)
    }

    /// Whether a client's update of a round was counted at the node that it came from.
    pub(super) fn was_counted(&self, sender: u32, round: u32) -> bool {
        let name = self.roster.member(sender).map(|member| &member.name);
        name.and_then(|name| self.homes.counted.get(name)) == Some(&round)
    }
}
