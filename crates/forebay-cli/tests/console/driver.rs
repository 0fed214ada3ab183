//! A browser that a test uses as a person does: it opens addresses, clicks, types and reads.
//!
//! It speaks the DevTools protocol over the pipe of `--remote-debugging-pipe`: JSON messages, each
//! of which ends with a zero byte. Clicks are events of the mouse at a place of the window, so that
//! an element that is hidden or covered cannot be clicked.

use crate::kit::{PATIENCE, Process, wait_for};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

pub struct Browser {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    tab: Value,
    calls: u64,
    _process: Process,
}

impl Browser {
    /// A window of the browser `program`, with its files in `dir`. It ends after five minutes, so
    /// that no call waits for longer.
    pub fn start(program: &Path, dir: &Path) -> Self {
        // The browser reads descriptor 3 and writes descriptor 4.
        let mut command = Command::new("timeout");
        command.args(["300", "sh", "-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#]);
        command.arg(program).args(["--no-sandbox", "--disable-gpu", "--headless"]);
        command.args(["--window-size=1400,1200", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", dir.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Browser { to, from, tab: Value::Null, calls: 0, _process: Process(child) };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        let permissions = json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
        browser.call("Browser.grantPermissions", permissions);
        browser.tab = attached["sessionId"].clone();
        browser
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if !self.tab.is_null() {
            message["sessionId"] = self.tab.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = Vec::new();
            self.from.read_until(0, &mut answer).unwrap();
            assert_eq!(answer.pop(), Some(0), "{method}: the browser has ended");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{message}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        self.until("document.readyState === 'complete'");
    }

    /// The value of an expression of JavaScript in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until the page, as a person sees it, has all of these texts.
    #[track_caller]
    pub fn sees(&mut self, words: &[&str]) {
        for word in words {
            self.until(&format!("document.body.innerText.includes({})", json!(word)));
        }
    }

    /// What a person sees on the page.
    pub fn text(&mut self) -> String {
        self.value("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Clicks on the element that `expression` finds, and waits for an effect that was not there.
    #[track_caller]
    pub fn click(&mut self, expression: &str, effect: &str) {
        assert_ne!(self.value(effect), true, "{effect} before the click on {expression}");
        wait_for(expression, || self.press(expression));
        self.until(effect);
    }

    /// Waits until the expression is true.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.value(expression) != true {
            assert!(Instant::now() < deadline, "{expression} is not true:\n{}", self.text());
        }
    }

    /// False if the element is not where it was when the button went down.
    fn press(&mut self, expression: &str) -> bool {
        let place = self.value(&format!(
            "(() => {{ const e = {expression}; if (!e) return null; e.scrollIntoView({{ block: 'center' }});
             const r = e.getClientRects()[0]; return r ? [r.x + r.width / 2, r.y + r.height / 2] : null; }})()"
        ));
        let (Some(x), Some(y)) = (place[0].as_f64(), place[1].as_f64()) else { return false };
        let event = |kind: &str, x: f64, y: f64| json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event("mousePressed", x, y));
        let hit = format!("{expression}?.contains(document.elementFromPoint({x}, {y})) === true");
        let is_there = self.value(&hit) == true;
        let (x, y) = if is_there { (x, y) } else { (0.0, 0.0) };
        self.call("Input.dispatchMouseEvent", event("mouseReleased", x, y));
        is_there
    }

    /// Types into the element that has the focus.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key that has a name.
    pub fn key(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
        }
    }
}

/// Finds the visible link with this text.
pub fn link(text: &str) -> String {
    format!(
        "[...document.querySelectorAll('a')].find((a) => a.textContent === {} && a.offsetParent !== null)",
        json!(text)
    )
}

/// Whether the page has this title.
pub fn titled(title: &str) -> String {
    format!("document.title === {}", json!(title))
}
