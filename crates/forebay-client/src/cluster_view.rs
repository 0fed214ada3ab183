//! What a client remembers between two questions to the cluster.

use forebay_policy::preferred_nodes::PreferredNodes;
use forebay_wire::ClusterView;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

/// What a client remembers of the cluster between two questions.
#[derive(Debug, Default)]
pub(crate) struct KnownView(pub(crate) Mutex<Option<(Instant, ClusterView)>>);

/// The preferred nodes that a client has chosen, by the labels of mounts.
#[derive(Debug, Default)]
pub(crate) struct GivenPreferred(pub(crate) Mutex<BTreeMap<String, PreferredNodes>>);
