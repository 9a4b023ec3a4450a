//! What all machines that listen have in common: they let peers in, watch their links, and pass messages on.

use thalweg_wire::control::{Control, Hello, Nonce, Refusal, Welcome};

use super::roster::{Action, Dropped, LinkId, MemberEvent, Roster, Traffic};
use crate::{Span, Time};

/// A machine that listens. Its [`Roster`] holds its links and members. The machine adds a policy: what
/// messages mean, and what follows when a link ends.
///
/// The methods of this trait call those that are marked "Policy"; a driver does not. A driver reports each input
/// by the method for it, then calls [`ServerMachine::poll_action`] until there is no action.
pub trait ServerMachine: Sized {
    /// The policy's state of a member.
    type Member: Default;
    /// The policy's state of a link.
    type Link: Default;
    /// The actions that only this policy asks for.
    type Wanted;

    /// The links and members.
    fn roster(&self) -> &Roster<Self::Member, Self::Link, Self::Wanted>;

    /// The links and members, to change them.
    fn roster_mut(&mut self) -> &mut Roster<Self::Member, Self::Link, Self::Wanted>;

    /// Policy: lets the peer that sent this Hello in, or refuses it.
    fn hello(&mut self, now: Time, link: LinkId, hello: &Hello);

    /// Policy: handles a message from a member.
    fn message(&mut self, now: Time, link: LinkId, sender: u32, message: Control);

    /// Policy: handles the end of a link.
    fn dropped(&mut self, now: Time, dropped: Dropped<Self::Link>);

    /// Policy: handles the timer that was set for this link with [`Roster::wake`].
    fn link_due(&mut self, _now: Time, _link: LinkId) {}

    /// Policy: the next time at which a timer of the policy is due.
    fn next_timer(&self) -> Option<Time>;

    /// Policy: handles the policy's timers that are due at `now`.
    fn timers_due(&mut self, now: Time);

    /// Policy: called after each input, to act on the new state.
    fn after_input(&mut self, _now: Time) {}

    /// Reports that a parcel, or ranges of it, were sent on this link; `Err` says why not.
    fn sent(&mut self, now: Time, link: LinkId, parcel: u32, outcome: Result<Span, String>);

    /// Reports that a member's process has ended for good. Ends its link. `why` is the reason; an empty `why`
    /// means "its process has ended".
    fn forget(&mut self, now: Time, name: &str, why: &str);

    /// Takes a member out of the job for the reason `why`, and ends its link. Whether it may come back is the
    /// [`Admission`](super::Admission)'s decision.
    fn expel(&mut self, now: Time, name: &str, why: &str) {
        self.forget(now, name, why);
    }

    /// Ends the job: sends a Bye to every member, and lets no peer in any more.
    fn finish(&mut self, now: Time, reason: &str);

    /// Takes the next action.
    fn poll_action(&mut self) -> Option<Action<Self::Wanted>> {
        self.roster_mut().poll_action()
    }

    /// Whether there is an action to do.
    fn has_action(&self) -> bool {
        self.roster().has_action()
    }

    /// Reports a new link. `nonce` must be fresh random bytes; `ordered`: the link keeps the order of
    /// messages and chunks.
    fn connected(&mut self, now: Time, link: LinkId, nonce: Nonce, ordered: bool) {
        self.roster_mut().open(now, link, nonce, ordered);
    }

    /// Reports that no chunk on this link overtakes a message that was sent before it.
    fn keeps_order(&mut self, link: LinkId) {
        self.roster_mut().on_link(link, |served| served.session.in_order = true);
    }

    /// Reports the current values of the link's counters. The driver must call this before `control`, `sent`
    /// and `closed`.
    fn observe(&mut self, link: LinkId, traffic: Traffic) {
        self.roster_mut().observe(link, traffic);
    }

    /// Handles a message from a link.
    fn control(&mut self, now: Time, link: LinkId, message: Control) {
        match self.roster_mut().control(now, link, message) {
            MemberEvent::Nothing => {}
            MemberEvent::Hello(hello) => self.hello(now, link, &hello),
            MemberEvent::Senseless(why) => self.refuse(now, link, Refusal::Protocol, why),
            MemberEvent::LayoutMismatch(how) => self.refuse(now, link, Refusal::Layout, &how),
            MemberEvent::Message(sender, message) => self.message(now, link, sender, message),
        }
        self.after_input(now);
    }

    /// Reports that `bytes` more bytes of chunks have arrived on this link.
    fn progress(&mut self, now: Time, link: LinkId, bytes: u64) {
        self.roster_mut().progress(now, link, bytes);
    }

    /// Reports that this link is held up, for example by a broker, and that its peer is not the cause. This
    /// time does not count as silence of the peer.
    fn held(&mut self, now: Time, link: LinkId) {
        self.roster_mut().held(now, link);
    }

    /// Reports that a link has ended.
    fn closed(&mut self, now: Time, link: LinkId, reason: &str) {
        self.drop_link(now, link, reason);
        self.after_input(now);
    }

    /// When the driver must call [`ServerMachine::timeout`] at the latest.
    fn poll_timeout(&self) -> Option<Time> {
        self.roster().next_timer().into_iter().chain(self.next_timer()).min()
    }

    /// Handles all timers that are due at `now`.
    fn timeout(&mut self, now: Time) {
        for link in self.roster_mut().due(now) {
            let due = self.roster().wake_at(link).is_some_and(|at| now >= at);
            match self.roster_mut().look(now, link) {
                Err(reason) => self.refuse(now, link, Refusal::Liveness, &reason),
                Ok(()) if due => self.link_due(now, link),
                Ok(()) => {}
            }
        }
        self.timers_due(now);
        self.after_input(now);
    }

    /// Names of the members that are connected.
    fn connected_clients(&self) -> impl Iterator<Item = &str> {
        self.roster().connected_names()
    }

    /// How many members are connected.
    fn connected_count(&self) -> usize {
        self.roster().connected()
    }

    /// Members that were connected before and are not now, and peers that were refused for their layout: each
    /// with the reason and whether it left for good.
    fn departed(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        self.roster().departed()
    }

    /// How many connected members still have to send their Counted for a settled parcel.
    fn uncounted(&self) -> usize {
        self.roster().uncounted()
    }

    /// Segments retransmitted so far to each member, and by each member; `None` if a transport cannot
    /// count them.
    fn resent(&mut self) -> Vec<(String, Option<u64>, Option<u64>)> {
        self.roster_mut().resent()
    }

    /// Whether the peer at the other end of this link is let in.
    fn is_member(&self, link: LinkId) -> bool {
        self.roster().member_at(link).is_some()
    }

    /// Whether the log already says why the peer of this ended link was not let in. True once.
    fn take_reported(&mut self, link: LinkId) -> bool {
        self.roster_mut().take_reported(link)
    }

    /// Refuses a peer, or ends a member's link, for this reason.
    fn refuse(&mut self, now: Time, link: LinkId, code: Refusal, reason: &str) {
        self.roster_mut().record_refusal(link, code, reason);
        self.roster_mut().send(link, Control::Refused { code, reason: reason.into() });
        self.end_link(now, link, reason);
    }

    /// Ends a link, once all messages to it are sent.
    fn end_link(&mut self, now: Time, link: LinkId, reason: &str) {
        self.drop_link(now, link, reason);
        self.roster_mut().close(link);
    }

    /// Removes a link, and handles what follows.
    fn drop_link(&mut self, now: Time, link: LinkId, reason: &str) {
        if let Some(dropped) = self.roster_mut().drop_link(link, reason) {
            self.dropped(now, dropped);
        }
    }

    /// Lets in the peer that sent this Hello, in place of an older link of the same member, and sends it the
    /// Welcome. Returns the member's number, and whether the same process was connected before.
    fn let_in(&mut self, now: Time, link: LinkId, hello: &Hello, welcome: Welcome) -> (u32, bool) {
        let before = self.roster().named(&hello.name).and_then(|number| self.roster().link_of(number));
        if let Some(old) = before {
            self.end_link(now, old, "it connected anew");
        }
        let (sender, same) = self.roster_mut().enrol(now, link, hello);
        self.roster_mut().send(link, Control::Welcome(Welcome { sender, ..welcome }));
        (sender, same)
    }

    /// Sends a Bye on every link and ends it. `why` begins the reason that is recorded.
    fn end_all_links(&mut self, now: Time, why: &str, reason: &str) {
        self.roster_mut().finish(reason);
        for link in self.roster().links() {
            self.roster_mut().act(Action::Cancel { link, parcel: None });
            self.roster_mut().send(link, Control::Bye { reason: reason.into() });
            self.end_link(now, link, &format!("{why}: {reason}"));
        }
    }
}
