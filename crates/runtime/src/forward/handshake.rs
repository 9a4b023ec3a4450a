//! The first messages of a link: the near end proves who it is, as a client of a job does.

use std::sync::Arc;
use std::time::Duration;

use thalweg_pki as pki;
use thalweg_proto::{other_purpose, Admission, LinkId};
use thalweg_transport::{Link, Sink, Target};
use thalweg_wire::control::{Challenge, Control, Forward, Hello, Holding, Proof, Purpose, Refusal, VERSIONS};
use thalweg_wire::text::{plain, MAX_REASON};
use thalweg_wire::{ChunkHeader, WireError};

use crate::engine::Gate;
use crate::{random, Error};

/// How long either end may take for its part.
const PATIENCE: Duration = Duration::from_secs(20);
const SHAKE_HANDS: &str = "agree on forwarding";

/// No chunk is wanted yet.
struct Nowhere;

impl Sink for Nowhere {
    fn place(&self, _: &ChunkHeader) -> Option<Target> {
        None
    }

    fn progress(&self, _: u64) {}

    fn stored(&self, _: &ChunkHeader, _: Target, _: Result<(), WireError>) {}
}

/// Who a near end is.
pub(crate) struct Identity {
    pub name: String,
    pub token: Option<pki::Token>,
    pub instance: u64,
}

/// What the far end grants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub window: u64,
    pub streams: u32,
}

async fn hear(link: &Arc<dyn Link>) -> Result<Control, Error> {
    let late = |_| Error::new("timeout", SHAKE_HANDS, format!("{} says nothing", link.peer().address));
    let message = tokio::time::timeout(PATIENCE, link.receive(&Nowhere)).await.map_err(late)??;
    Control::decode(&message).map_err(|e| Error::new("corrupt", SHAKE_HANDS, e.to_string()))
}

async fn say(link: &Arc<dyn Link>, message: &Control) -> Result<(), Error> {
    let bytes = message.encode().map_err(|e| Error::new("system", SHAKE_HANDS, e.to_string()))?;
    Ok(link.send_control(bytes.into()).await?)
}

fn other(what: &str) -> Error {
    let context = format!("{what}; give --via the address of a `thalweg forward --to`");
    Error::new("refused", SHAKE_HANDS, context)
}

/// The near end's part.
///
/// # Errors
/// `refused` with the far end's words; what the link says.
pub(crate) async fn near(link: &Arc<dyn Link>, who: &Identity) -> Result<Ready, Error> {
    let Control::Challenge(challenge) = hear(link).await? else {
        return Err(other("the other end does not speak as a server does"));
    };
    if challenge.versions.0 > VERSIONS.1 || challenge.versions.1 < VERSIONS.0 {
        let (low, high) = challenge.versions;
        let context =
            format!("the far end speaks session versions {low}..={high}, we {VERSIONS:?}; use one release");
        return Err(Error::new("refused", SHAKE_HANDS, context));
    }
    say(link, &Control::Hello(hello(link, who, &challenge)?)).await?;
    match hear(link).await? {
        Control::Forward(Forward::Ready { window, streams, .. }) => Ok(Ready { window, streams }),
        Control::Refused { reason, .. } => Err(Error::new("refused", SHAKE_HANDS, reason)),
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
            name: &who.name,
            binding: link.peer().binding.as_ref(),
        };
        pki::proof(token, &transcript)
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

/// The far end's part. Returns the near end's name; the link has been admitted then.
///
/// # Errors
/// `refused` for a near end that is not let in, and was told so; what the link says.
pub(crate) async fn far(
    link: &Arc<dyn Link>,
    id: LinkId,
    gate: &Gate,
    ready: Ready,
    liveness: Duration,
) -> Result<String, Error> {
    let nonce = random()?;
    let token = gate.wants_token();
    say(link, &Control::Challenge(Challenge { versions: VERSIONS, nonce, token, clock: 0 })).await?;
    let refused = match hear(link).await? {
        Control::Hello(hello) if hello.purpose != Purpose::Forward => {
            Err((Refusal::Job, other_purpose(Purpose::Forward).to_owned()))
        }
        Control::Hello(hello) => match gate.admit(id, &nonce, &hello) {
            Ok(()) => Ok(hello.name),
            Err(reason) => Err((Refusal::Authentication, reason)),
        },
        _ => Err((Refusal::Protocol, "it does not say who it is".to_owned())),
    };
    match refused {
        Ok(name) => {
            link.admit(); // before it hears so, since it may send more from then on
            let liveness = u64::try_from(liveness.as_micros()).unwrap_or(u64::MAX);
            let Ready { window, streams } = ready;
            say(link, &Control::Forward(Forward::Ready { window, streams, liveness })).await?;
            Ok(name)
        }
        Err((code, reason)) => {
            let reason = plain(&reason, MAX_REASON);
            say(link, &Control::Refused { code, reason: reason.clone() }).await?;
            Err(Error::new("refused", SHAKE_HANDS, reason))
        }
    }
}
