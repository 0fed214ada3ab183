//! The accounts of all jobs of this node, the limits of the cluster, and this node's shares.

use super::account::Account;
use crate::lock::lock;
use forebay_policy::job_limits::{Rule, Rules, USER_RULES_MAX};
use forebay_wire::traffic::{
    JOB_NAME_BYTES_MAX, SERVERS_REPORTED_MAX, SERVERS_SHOWN_MAX, is_job_name, most_active,
};
use forebay_wire::{JobName, JobTraffic, Refusal};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most jobs that are counted; what others move counts as that of their users' programs without a
/// job.
const ACCOUNTS_MAX: usize = 512;

/// How long a job that nobody uses has moved nothing before it is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// How often rates are measured, and reported to the coordinator.
const EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Traffic {
    /// Labels of the mounts.
    labels: Vec<String>,
    accounts: Mutex<BTreeMap<JobName, Known>>,
    limits: Mutex<Limits>,
    next_number: AtomicU64,
    /// When rates were measured last.
    looked: Mutex<Instant>,
    /// The last report has said that something moves.
    was_active: AtomicBool,
}

#[derive(Debug)]
struct Known {
    account: Arc<Account>,
    /// When it was last used or moved something.
    used: Instant,
}

#[derive(Debug, Default)]
struct Limits {
    rules: Rules,
    /// This node's shares, as the coordinator has divided the limits.
    shares: BTreeMap<JobName, u64>,
    /// Nodes of the cluster.
    members: u64,
}

impl Limits {
    /// The limit of a job, and this node's share: until the coordinator has said more, an equal
    /// part.
    fn of(&self, name: &JobName) -> (Option<u64>, u64) {
        let limit = self.rules.rate_of(name.user, &name.job);
        let equal = limit.unwrap_or(0) / self.members.max(1);
        let share = self.shares.get(name).copied().unwrap_or(equal);
        (limit, share.min(limit.unwrap_or(0)).max(1))
    }
}

impl Traffic {
    /// Traffic without jobs, on mounts with these labels.
    pub fn new(labels: Vec<String>) -> Self {
        Traffic {
            labels,
            accounts: Mutex::default(),
            limits: Mutex::default(),
            next_number: AtomicU64::new(1),
            looked: Mutex::new(Instant::now()),
            was_active: AtomicBool::new(false),
        }
    }

    /// The account of a job; an empty name is that of programs without one.
    pub fn account(&self, user: u32, job: &str) -> Arc<Account> {
        let mut accounts = lock(&self.accounts);
        let mut name = JobName { user, job: job.to_owned() };
        let is_full = |accounts: &BTreeMap<JobName, Known>| accounts.len() >= ACCOUNTS_MAX;
        if !accounts.contains_key(&name) && is_full(&accounts) {
            let idle = accounts.iter().filter(|(_, known)| Arc::strong_count(&known.account) == 1);
            let oldest = idle.min_by_key(|(_, known)| known.used).map(|(name, _)| name.clone());
            oldest.iter().for_each(|name| drop(accounts.remove(name)));
            if is_full(&accounts) && lock(&self.limits).rules.rate_of(user, job).is_none() {
                name.job.clear();
            }
        }
        let known = accounts.entry(name.clone()).or_insert_with(|| {
            let account = Account::new(name.clone(), self.next_number.fetch_add(1, Relaxed));
            let (limit, share) = lock(&self.limits).of(&name);
            account.set_limit(limit, share);
            Known { account: Arc::new(account), used: Instant::now() }
        });
        known.used = Instant::now();
        known.account.clone()
    }

    /// Sets a limit on behalf of user `by`. Returns what other nodes are to hear: nothing if it is
    /// in force already, as on the second node of a job. An operator who lifts a user's limit lifts
    /// that user's own as well.
    ///
    /// # Errors
    /// Another user's job, a name that cannot be, or too many limits.
    pub fn set(
        &self,
        (by, is_operator): (u32, bool),
        job: String,
        user: Option<u32>,
        rate_bytes_per_s: Option<u64>,
    ) -> Result<Vec<Rule>, Refusal> {
        if !is_job_name(&job) {
            return Err(Refusal::Invalid(format!(
                "the name of a job has 1 to {JOB_NAME_BYTES_MAX} bytes, and no control characters"
            )));
        }
        let user = if is_operator { user } else { Some(user.unwrap_or(by)) };
        if !is_operator && user != Some(by) {
            return Err(Refusal::NotAllowed);
        }
        let mut limits = lock(&self.limits);
        let mut rule = Rule { job, user, is_operators: is_operator, by, rate_bytes_per_s, set_ms: 0 };
        let is_own = |known: &&Rule| !known.is_operators && known.by == by;
        let is_known = |known: &Rule| (&known.job, known.user) == (&rule.job, rule.user);
        let own: Vec<_> = limits.rules.in_force().filter(is_own).collect();
        if !is_operator && own.len() >= USER_RULES_MAX && !own.iter().any(|known| is_known(known)) {
            return Err(Refusal::TooMany(format!(
                "rate limits of one user: {USER_RULES_MAX} are there; lift some with `forebay limit JOB none`"
            )));
        }
        let is_same = |known: &&Rule| known.is_operators == is_operator && is_known(known);
        if rate_bytes_per_s.is_some()
            && limits.rules.in_force().filter(is_same).any(|known| known.rate_bytes_per_s == rate_bytes_per_s)
        {
            return Ok(Vec::new());
        }
        let own_of_user =
            limits.rules.in_force().find(|known| !known.is_operators && is_known(known)).cloned();
        let own_of_user = own_of_user.filter(|_| is_operator && rate_bytes_per_s.is_none());
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        rule.set_ms = limits.rules.time_for(&rule, now_ms);
        if !limits.rules.merge(rule.clone()) {
            return Err(Refusal::TooMany(
                "rate limits in this cluster; lift some with `forebay limit JOB none`".into(),
            ));
        }
        let mut said = vec![rule];
        if let Some(mut own) = own_of_user {
            own.set_ms = limits.rules.time_for(&own, now_ms);
            own.rate_bytes_per_s = None;
            limits.rules.merge(own.clone());
            said.push(own);
        }
        drop(limits);
        self.apply();
        Ok(said)
    }

    /// Takes in limits that another node, or the coordinator, knows.
    pub fn merge(&self, limits: Vec<Rule>) {
        let mut known = lock(&self.limits);
        let changed = limits.into_iter().filter(|limit| known.rules.merge(limit.clone())).count();
        drop(known);
        if changed > 0 {
            self.apply();
        }
    }

    /// Takes the shares of a new division of the limits by the coordinator.
    pub fn set_shares(&self, shares: Vec<(JobName, u64)>) {
        lock(&self.limits).shares = shares.into_iter().collect();
        self.apply();
    }

    /// Sets the number of nodes of the cluster.
    pub fn set_members(&self, members: usize) {
        let members = members as u64;
        if std::mem::replace(&mut lock(&self.limits).members, members) != members {
            self.apply();
        }
    }

    fn apply(&self) {
        let accounts = lock(&self.accounts);
        let limits = lock(&self.limits);
        for (name, known) in &*accounts {
            let (limit, share) = limits.of(name);
            if limit.is_some() || known.account.is_limited() {
                known.account.set_limit(limit, share);
            }
        }
    }

    /// All limits, including those that were lifted, for a coordinator.
    pub fn known(&self) -> Vec<Rule> {
        lock(&self.limits).rules.all().to_vec()
    }

    /// The limits in force, by job; those of others only for the operator.
    pub fn in_force(&self, user: u32, is_operator: bool) -> Vec<Rule> {
        let limits = lock(&self.limits);
        let is_shown = |rule: &&Rule| is_operator || rule.user.is_none_or(|of| of == user);
        let mut shown: Vec<_> = limits.rules.in_force().filter(is_shown).cloned().collect();
        shown.sort_by(|a, b| (&a.job, a.user, a.is_operators).cmp(&(&b.job, b.user, b.is_operators)));
        shown
    }

    /// Measures rates once a second. Returns what the coordinator is to hear, if anything moves, or
    /// has just ceased to.
    pub fn tick(&self) -> Option<Vec<JobTraffic>> {
        let passed = {
            let mut looked = lock(&self.looked);
            let passed = looked.elapsed();
            if passed < EVERY {
                return None;
            }
            *looked = Instant::now();
            passed
        };
        let mut accounts = lock(&self.accounts);
        let mut is_active = false;
        for known in accounts.values_mut() {
            if known.account.look(passed) {
                known.used = Instant::now();
                is_active = true;
            }
        }
        accounts.retain(|_, known| Arc::strong_count(&known.account) > 1 || known.used.elapsed() < FORGOTTEN);
        drop(accounts);
        let was_active = self.was_active.swap(is_active, Relaxed);
        (is_active || was_active).then(|| self.most_active(SERVERS_REPORTED_MAX))
    }

    /// What jobs move, those that move most first.
    pub fn status(&self) -> Vec<JobTraffic> {
        self.most_active(SERVERS_SHOWN_MAX)
    }

    fn most_active(&self, rows: usize) -> Vec<JobTraffic> {
        let accounts = lock(&self.accounts);
        most_active(accounts.values().map(|known| known.account.status(&self.labels)).collect(), rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(traffic: &Traffic, by: u32, user: Option<u32>, rate: Option<u64>) -> Result<Vec<Rule>, Refusal> {
        traffic.set((by, by == 0), "climate".into(), user, rate)
    }

    #[test]
    fn a_user_limits_own_jobs_and_the_operator_those_of_all() {
        let traffic = Traffic::new(vec!["pfs".into()]);
        let (own, other) = (traffic.account(7, "climate"), traffic.account(8, "climate"));
        assert_eq!(limit(&traffic, 7, Some(8), Some(1)), Err(Refusal::NotAllowed));
        limit(&traffic, 7, None, Some(1000)).unwrap();
        assert_eq!((own.is_limited(), other.is_limited()), (true, false));
        limit(&traffic, 0, None, Some(500)).unwrap();
        limit(&traffic, 7, None, None).unwrap();
        assert!(own.is_limited() && other.is_limited(), "the operator's stays");
        assert_eq!(traffic.status().len(), 0, "nothing was moved");
        assert_eq!(traffic.in_force(8, false).len(), 1);
        limit(&traffic, 0, None, None).unwrap();
        assert_eq!((own.is_limited(), other.is_limited(), traffic.known().len()), (false, false, 2));
        assert_eq!(limit(&traffic, 7, None, Some(9)).unwrap().len(), 1);
        assert_eq!(limit(&traffic, 7, None, Some(9)).unwrap().len(), 0, "it is in force");
        assert_eq!(limit(&traffic, 0, Some(7), None).unwrap().len(), 2, "the user's own goes as well");
        assert!(!own.is_limited());
        for name in ["", "a\nb", &"x".repeat(JOB_NAME_BYTES_MAX + 1)] {
            assert!(traffic.set((0, true), name.into(), None, Some(1)).is_err());
        }
    }

    #[test]
    fn a_limit_that_comes_from_elsewhere_holds_for_jobs_that_begin_later() {
        let (first, second) = (Traffic::new(Vec::new()), Traffic::new(Vec::new()));
        first.set_members(4);
        second.set_members(4);
        limit(&first, 0, Some(7), Some(1 << 20)).unwrap();
        second.merge(first.known());
        let account = second.account(7, "climate");
        assert!(account.is_limited() && !second.account(7, "").is_limited());
        let name = JobName { user: 7, job: "climate".into() };
        assert_eq!(lock(&second.limits).of(&name), (Some(1 << 20), 1 << 18));
        second.set_shares(vec![(name.clone(), 1 << 19)]);
        assert_eq!(lock(&second.limits).of(&name), (Some(1 << 20), 1 << 19));
    }

    #[test]
    fn the_accounts_are_bounded_and_those_in_use_stay() {
        let traffic = Traffic::new(Vec::new());
        let kept = traffic.account(1, "kept");
        for number in 0..2 * ACCOUNTS_MAX {
            traffic.account(1, &number.to_string());
        }
        assert!(lock(&traffic.accounts).len() <= ACCOUNTS_MAX);
        assert!(Arc::ptr_eq(&kept, &traffic.account(1, "kept")));
    }
}
