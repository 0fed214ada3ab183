//! The few elements of SVG that the figures are made of.

use std::fmt::Write as _;

/// Where text stands relative to its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// A drawing, in pixels from the upper left.
pub struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

impl Canvas {
    pub fn new(width: f64, height: f64) -> Self {
        Canvas { width, height, body: String::new() }
    }

    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str, tip: &str) {
        let tip = if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
        let _ = writeln!(
            self.body,
            r##"<rect x="{x:.2}" y="{y:.2}" width="{:.2}" height="{:.2}" fill="{fill}" stroke="#fff" stroke-width="0.5">{tip}</rect>"##,
            width.max(0.0),
            height.max(0.0)
        );
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.2}" y1="{:.2}" x2="{:.2}" y2="{:.2}" stroke="{stroke}" stroke-width="{width}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub fn dashed(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.2}" y1="{:.2}" x2="{:.2}" y2="{:.2}" stroke="{stroke}" stroke-dasharray="5 3"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub fn polyline(&mut self, points: &[(f64, f64)], stroke: &str) {
        let list: Vec<String> = points.iter().map(|p| format!("{:.2},{:.2}", p.0, p.1)).collect();
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{stroke}" stroke-width="1.8" stroke-linejoin="round"/>"#,
            list.join(" ")
        );
    }

    /// A filled shape.
    pub fn area(&mut self, points: &[(f64, f64)], fill: &str, tip: &str) {
        let list: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", p.0, p.1)).collect();
        let (list, tip) = (list.join(" "), escape(tip));
        let _ =
            writeln!(self.body, r#"<polygon points="{list}" fill="{fill}"><title>{tip}</title></polygon>"#);
    }

    pub fn circle(&mut self, at: (f64, f64), radius: f64, fill: &str) {
        let _ =
            writeln!(self.body, r#"<circle cx="{:.2}" cy="{:.2}" r="{radius}" fill="{fill}"/>"#, at.0, at.1);
    }

    /// A hollow circle.
    pub fn ring(&mut self, at: (f64, f64), radius: f64, tip: &str) {
        let _ = writeln!(
            self.body,
            r##"<circle cx="{:.2}" cy="{:.2}" r="{radius}" fill="#fff" fill-opacity="0.6" stroke="#222" stroke-width="1.4"><title>{}</title></circle>"##,
            at.0,
            at.1,
            escape(tip)
        );
    }

    pub fn text(&mut self, at: (f64, f64), text: &str, size: f64, anchor: Anchor) {
        let _ = writeln!(
            self.body,
            r##"<text x="{:.2}" y="{:.2}" font-size="{size}" text-anchor="{}" fill="#222">{}</text>"##,
            at.0,
            at.1,
            anchor.name(),
            escape(text)
        );
    }

    pub fn upright_text(&mut self, at: (f64, f64), text: &str, size: f64) {
        let _ = writeln!(
            self.body,
            r##"<text x="{x:.2}" y="{y:.2}" font-size="{size}" text-anchor="middle" fill="#222" transform="rotate(-90 {x:.2} {y:.2})">{}</text>"##,
            escape(text),
            x = at.0,
            y = at.1
        );
    }

    /// Draws coloured squares with names in one row, from `at` to the right; returns where the row
    /// ends.
    pub fn legend(&mut self, at: (f64, f64), entries: &[(&str, &str)]) -> f64 {
        let mut x = at.0;
        for (name, fill) in entries {
            self.rect(x, at.1 - 9.0, 10.0, 10.0, fill, "");
            self.text((x + 14.0, at.1), name, 11.0, Anchor::Start);
            // SVG does not say how wide a text is; 6.2 pixels per letter is wide enough for this
            // font and size.
            x += 28.0 + 6.2 * name.chars().count() as f64;
        }
        x
    }

    pub fn finish(self) -> String {
        format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" "#,
                r##"font-family="Helvetica, Arial, sans-serif"><rect width="{w}" height="{h}" fill="#fff"/>"##,
                "\n{body}</svg>\n"
            ),
            w = self.width,
            h = self.height,
            body = self.body
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
