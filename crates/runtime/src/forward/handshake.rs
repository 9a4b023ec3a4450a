//! The handshake of a forwarded path: the near end authenticates itself, as a client of a job does.

use std::sync::Arc;
use std::time::Duration;

use thalweg_pki as pki;
use thalweg_proto::{micros, other_purpose, Admission, LinkId};
use thalweg_transport::{Link, NoChunks};
use thalweg_wire::control::{Challenge, Control, Forward, Hello, Holding, Proof, Purpose, Refusal, VERSIONS};
use thalweg_wire::limits;
use thalweg_wire::text::{check_name, plain, MAX_REASON};

use crate::engine::Gate;
use crate::{random, Error, Kind};

/// Shortest liveness limit that a near end accepts from a far end.
const LEAST_LIVENESS: Duration = Duration::from_millis(100);
/// Number of the job in handshakes and chunks: 0, since streams belong to no job.
pub(crate) const JOB: u64 = 0;
const SHAKE_HANDS: &str = "agree on forwarding";

/// Identity of a near end.
pub(crate) struct Identity {
    pub name: String,
    pub token: Option<pki::Token>,
    pub instance: u64,
}

/// The limits that the far end grants to a near end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    /// Number of bytes that the far end buffers of each stream.
    pub window: u64,
    /// Maximum number of streams at a time.
    pub streams: u32,
    /// The length of a silence that ends the link, at both ends.
    pub liveness: Duration,
}

async fn hear(link: &Arc<dyn Link>) -> Result<Control, Error> {
    let late = |_| Error::new(Kind::Timeout, SHAKE_HANDS, format!("{} says nothing", link.peer().address));
    let message = tokio::time::timeout(limits::ANSWERED, link.receive(&NoChunks)).await.map_err(late)??;
    Control::decode(&message).map_err(|e| Error::new(Kind::Corrupt, SHAKE_HANDS, e.to_string()))
}

async fn say(link: &Arc<dyn Link>, message: &Control) -> Result<(), Error> {
    let bytes = message.encode().map_err(|e| Error::new(Kind::System, SHAKE_HANDS, e.to_string()))?;
    Ok(link.send_control(bytes.into()).await?)
}

fn other(what: &str) -> Error {
    Error::new(Kind::Refused, SHAKE_HANDS, what).hint("give --via the address of a `thalweg forward --to`")
}

/// Does the near end's part of the handshake.
///
/// # Errors
/// `refused`, with the far end's reason; the link's errors.
pub(crate) async fn near(link: &Arc<dyn Link>, who: &Identity) -> Result<Ready, Error> {
    let Control::Challenge(challenge) = hear(link).await? else {
        return Err(other("the other end does not speak as a server does"));
    };
    if challenge.versions.0 > VERSIONS.1 || challenge.versions.1 < VERSIONS.0 {
        let (low, high) = challenge.versions;
        let context = format!("the far end speaks session versions {low}..={high}, we {VERSIONS:?}");
        return Err(Error::new(Kind::Refused, SHAKE_HANDS, context).hint("use one release"));
    }
    say(link, &Control::Hello(hello(link, who, &challenge)?)).await?;
    match hear(link).await? {
        Control::Forward(Forward::Ready { window, streams, liveness }) => {
            let liveness = Duration::from_micros(liveness).max(LEAST_LIVENESS);
            Ok(Ready { window, streams, liveness })
        }
        Control::Refused { reason, .. } => Err(Error::new(Kind::Refused, SHAKE_HANDS, reason)),
        _ => Err(other("the other end forwards nothing")),
    }
}

fn hello(link: &Arc<dyn Link>, who: &Identity, challenge: &Challenge) -> Result<Hello, Error> {
    let nonce = random()?;
    let token = who.token.as_ref().filter(|_| challenge.token);
    let proof = token.map(|token| -> Proof {
        let transcript = pki::Transcript {
            server_nonce: &challenge.nonce,
            client_nonce: &nonce,
            job: challenge.job(),
            name: &who.name,
            binding: link.peer().binding.as_ref(),
        };
        Box::new(token.prove(pki::Role::Forward, &transcript))
    });
    Ok(Hello {
        version: challenge.versions.1.min(VERSIONS.1),
        name: who.name.clone(),
        instance: who.instance,
        nonce,
        proof,
        layout: None,
        holding: Holding::Nothing,
        clock: 0,
        purpose: Purpose::Forward,
    })
}

/// Does the far end's part of the handshake. Admits the link, and returns the near end's name.
///
/// # Errors
/// `refused` for a near end that is not admitted, after telling it the reason; the link's errors.
pub(crate) async fn far(
    link: &Arc<dyn Link>,
    id: LinkId,
    gate: &Gate,
    ready: Ready,
) -> Result<String, Error> {
    let challenge = Challenge::new(random()?, gate.wants_token(), JOB, 0);
    let nonce = challenge.nonce;
    say(link, &Control::Challenge(challenge)).await?;
    let refused = match hear(link).await? {
        Control::Hello(hello) if hello.purpose != Purpose::Forward => {
            Err((Refusal::Job, other_purpose(Purpose::Forward).to_owned()))
        }
        Control::Hello(hello) if check_name(&hello.name).is_err() => {
            Err((Refusal::Protocol, "its name is none; give --name".to_owned()))
        }
        Control::Hello(hello) => match gate.admit(id, &nonce, &hello) {
            Ok(()) => Ok(hello.name),
            Err(reason) => Err((Refusal::Authentication, reason)),
        },
        _ => Err((Refusal::Protocol, "it does not say who it is".to_owned())),
    };
    match refused {
        Ok(name) => {
            link.admit(); // before the near end is notified, since it may send more from then on
            let Ready { window, streams, liveness } = ready;
            let liveness = micros(liveness);
            say(link, &Control::Forward(Forward::Ready { window, streams, liveness })).await?;
            Ok(name)
        }
        Err((code, reason)) => {
            let reason = plain(&reason, MAX_REASON);
            say(link, &Control::Refused { code, reason: reason.clone() }).await?;
            Err(Error::new(Kind::Refused, SHAKE_HANDS, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_transport::memory::Memory;
    use thalweg_transport::{Address, Options, Transport};

    use super::*;
    use crate::engine::{Keys, Peers};

    /// Both ends of a link, and an admission check that admits everybody.
    async fn ends(name: &str) -> (Arc<dyn Link>, Arc<dyn Link>, Gate) {
        let (address, options) = (Address::parse(&format!("memory://{name}")).unwrap(), Options::default());
        let listener = Memory.listen(&address, &options).await.unwrap();
        let near = Memory.connect(&address, &options).await.unwrap();
        let far = listener.accept().await.unwrap().await.unwrap();
        let role = pki::Role::Forward;
        let keys = Keys { transport: &options, issuer: None, token: None, role, job: JOB };
        (near, far, Gate::new(&keys, true, Peers::default()).unwrap())
    }

    const READY: Ready = Ready { window: 5000, streams: 7, liveness: Duration::from_millis(300) };

    #[tokio::test]
    async fn the_near_end_learns_what_the_far_end_grants() {
        let (near_link, far_link, gate) = ends("forward-grants").await;
        let who = Identity { name: "site-1".into(), token: None, instance: 1 };
        let (learnt, name) = tokio::join!(near(&near_link, &who), far(&far_link, 1, &gate, READY));
        let Ready { window, streams, liveness } = learnt.unwrap();
        assert_eq!((window, streams, liveness), (5000, 7, READY.liveness));
        assert_eq!(name.unwrap(), "site-1");
    }

    #[tokio::test]
    async fn a_name_that_would_write_on_a_terminal_is_refused() {
        let (near_link, far_link, gate) = ends("forward-names").await;
        let who = Identity { name: "site\x1b[2J".into(), token: None, instance: 1 };
        let (learnt, name) = tokio::join!(near(&near_link, &who), far(&far_link, 1, &gate, READY));
        assert_eq!(name.unwrap_err().kind(), Kind::Refused);
        assert_eq!(learnt.unwrap_err().kind(), Kind::Refused);
    }

    #[tokio::test]
    async fn a_client_of_a_job_is_told_what_it_has_met() {
        let (near_link, far_link, gate) = ends("forward-purposes").await;
        let client = async {
            let Control::Challenge(challenge) = hear(&near_link).await.unwrap() else {
                panic!("no challenge")
            };
            let who = Identity { name: "anna".into(), token: None, instance: 1 };
            let hello = Hello { purpose: Purpose::Rounds, ..hello(&near_link, &who, &challenge).unwrap() };
            say(&near_link, &Control::Hello(hello)).await.unwrap();
            hear(&near_link).await.unwrap()
        };
        let (answer, name) = tokio::join!(client, far(&far_link, 1, &gate, READY));
        let Control::Refused { code: Refusal::Job, reason } = answer else { panic!("{answer:?}") };
        assert!(reason.contains("thalweg forward --via") && name.is_err(), "{reason}");
    }
}
