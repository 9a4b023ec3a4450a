//! Carries out the machines' actions as their drivers would.

use thalweg_proto::{Action, ClientAction, ClientMachine, LinkId, RoundAction, RoundStep, ServerMachine};
use thalweg_wire::control::Control;
use thalweg_wire::{checksum, ChunkHeader, Ranges};

use super::network::{End, Event};
use super::party::{chunks, model, update};
use super::world::{exclusive_or, World};
use super::{prove, JOB};

/// Whether `one` and `other` have the same bytes in these ranges.
fn agree(one: &[u8], other: &[u8], ranges: &Ranges) -> bool {
    ranges.iter().map(|r| r.start as usize..r.end as usize).all(|r| one[r.clone()] == other[r])
}

impl World {
    pub fn server_actions(&mut self) {
        self.due.set(None);
        while let Some(action) = self.server.machine.poll_action() {
            self.server_action(action);
        }
        self.server.check();
    }

    fn server_action(&mut self, action: Action<RoundAction>) {
        let now = self.now;
        match action {
            Action::Send { link, message } => {
                assert!(!self.server.dead.contains(&link), "{message:?} for the dead link {link}");
                if let Control::Welcome(welcome) = &message {
                    let name = self.clients[self.net.client_of(link)].profile.name.clone();
                    self.server.names.insert(welcome.sender, name);
                }
                let message = message.encode().expect("a small message");
                self.net.send_control(now, link, End::Server, message);
            }
            Action::SendParcel { links, parcel, difference, wanted } => {
                self.send_model(&links, parcel, difference, &wanted);
            }
            Action::Cancel { link, .. } => {
                assert!(!self.server.dead.contains(&link), "cancel for the dead link {link}");
                self.net.cancel(now, link, End::Server);
            }
            Action::Close { link } => {
                self.server.dead.insert(link);
                self.net.close(now, link, End::Server);
            }
            Action::Policy(RoundAction::Fold { sender, weight, holes, .. }) => {
                let (made, round, nan) = (&self.made, self.round, self.nan());
                let late = self.server.stale > 0;
                let outcome = self.server.fold_staged(sender, weight, &holes, |name, bytes, came| {
                    // A late update is of an earlier round. `World::check` compares it with the right one.
                    let made_in = |round: u32| made.get(&(name.to_string(), round)).into_iter().flatten();
                    let sent = |round: u32| {
                        made_in(round).any(|&i| agree(&update(name, i, round, bytes.len()), bytes, came))
                    };
                    nan || sent(round) || late && (1..round).any(sent)
                });
                self.net.at(now + self.server.folding, Event::Folded { sender, outcome });
            }
            Action::Policy(RoundAction::Unstage { sender }) => drop(self.server.staged.remove(&sender)),
            Action::Joined { client } => self.server.log.push(format!("+{client}")),
            Action::Note { client, what } => self.server.log.push(format!("{client}: {what}")),
            Action::TurnedAway { client, reason } => self.server.log.push(format!("!{client}: {reason}")),
            Action::Left { client, reason, .. } => self.server.log.push(format!("-{client}: {reason}")),
            Action::Policy(RoundAction::Arrived) => self.server.arrivals += 1,
            Action::Policy(RoundAction::Ended(outcome)) => self.server.ended(*outcome),
        }
    }

    fn nan(&self) -> bool {
        self.clients.iter().any(|c| c.profile.nan_at.is_some())
    }

    fn send_model(&mut self, links: &[LinkId], round: u32, difference: bool, wanted: &Ranges) {
        let layout = self.server.layout.hash();
        let id = ChunkHeader { job: JOB, round, sender: 0, layout, offset: 0, length: 0 };
        let chunk = self.cut_at(self.server.chunk);
        let differences = self.versions.as_ref().filter(|_| difference).map(|versions| &versions.difference);
        let frames = chunks(differences.unwrap_or(&self.model), wanted, chunk, id);
        let group = self.net.group();
        for &link in links {
            assert!(!self.server.dead.contains(&link), "the model for the dead link {link}");
            self.net.send_update(self.now, link, End::Server, group, round, frames.clone());
        }
    }

    pub fn client_actions(&mut self, index: usize) {
        self.due.set(None);
        while let Some(action) = self.clients[index].machine.poll_action() {
            self.client_action(index, action);
        }
    }

    fn client_action(&mut self, index: usize, action: ClientAction<RoundStep>) {
        let now = self.now;
        let client = &mut self.clients[index];
        let instance = client.instance;
        match action {
            ClientAction::Connect { after, to } => {
                client.seen.sent_to = to;
                self.net.at(now + after, Event::Connect { client: index, instance });
            }
            ClientAction::Prove { challenge, .. } => {
                let nonce = client.machine.nonce().expect("there is a link");
                let proof = client.profile.token.map(|t| prove(t, &challenge, &nonce, &client.profile.name));
                client.machine.proven(now + client.profile.skew, proof);
            }
            ClientAction::Send(message) => self.client_sends(index, &message),
            ClientAction::SendParcel { parcel, wanted } => self.send_client_update(index, parcel, &wanted),
            ClientAction::Cancel { .. } => {
                if let Some(link) = client.link {
                    self.net.cancel(now, link, End::Client);
                }
            }
            ClientAction::Close => {
                if let Some(link) = client.link.take() {
                    self.net.close(now, link, End::Client);
                }
            }
            ClientAction::Joined(welcome) => client.arena = vec![0; welcome.layout.bytes() as usize],
            ClientAction::Policy(RoundStep::Fill { holes, .. }) => client.mended = holes,
            ClientAction::Policy(RoundStep::Ready { round, tracked, .. }) => {
                if let (Some(tracked), Some(versions)) = (tracked, &mut self.versions) {
                    if tracked.is_difference {
                        client.arena = exclusive_or(&client.arena, &client.held);
                        versions.ready.0 += 1;
                    } else {
                        versions.ready.1 += 1;
                    }
                    assert_eq!(checksum(&client.arena), tracked.checksum, "of round {round}");
                    client.held.clone_from(&client.arena);
                }
                let given =
                    if round == self.round { self.model.clone() } else { model(round, client.arena.len()) };
                let came = std::mem::take(&mut client.mended).holes(given.len() as u64);
                assert!(agree(&client.arena, &given, &came), "not the model of round {round}");
                client.seen.ready.push(round);
                self.made.entry((client.profile.name.clone(), round)).or_default().push(instance);
                let at = now + client.profile.train;
                self.net.at(at, Event::Trained { client: index, instance, round });
            }
            ClientAction::Policy(RoundStep::Verdict { round, verdict, lost }) => {
                client.seen.verdicts.push((round, verdict));
                client.seen.lost.push(lost);
            }
            ClientAction::Finished(outcome) => {
                client.seen.finished = Some(outcome.map_err(|why| why.to_string()))
            }
        }
    }

    fn client_sends(&mut self, index: usize, message: &Control) {
        let client = &mut self.clients[index];
        let link = client.link.unwrap_or_else(|| unreachable!("{message:?} without a link"));
        match message {
            Control::Hello(_) => {
                client.seen.hellos += 1;
                client.greeted = true;
            }
            Control::Offer { .. } => client.seen.offers += 1,
            Control::End { .. } => client.seen.ends += 1,
            _ => {}
        }
        assert!(client.greeted, "{message:?} before the Hello");
        let message = message.encode().expect("a small message");
        self.net.send_control(self.now, link, End::Client, message);
    }

    /// The size of the next chunk to cut. With `recut` it is random.
    fn cut_at(&mut self, chunk: u32) -> u32 {
        if !self.recut {
            return chunk;
        }
        chunk / 4 * (1 + self.net.rng.below(4) as u32)
    }

    fn send_client_update(&mut self, index: usize, round: u32, wanted: &Ranges) {
        let chunk = self.cut_at(self.server.chunk);
        let client = &self.clients[index];
        let link = client.link.expect("there is a link");
        let welcome = client.machine.welcome().expect("it was let in");
        let (sender, layout) = (welcome.sender, welcome.layout.hash());
        let id = ChunkHeader { job: JOB, round, sender, layout, offset: 0, length: 0 };
        let frames = chunks(&client.arena, wanted, chunk, id);
        let group = self.net.group();
        self.net.send_update(self.now, link, End::Client, group, round, frames);
    }
}
