//! Pictures as files: the content of the SVG, the pixels of the PNG, and that both are the same each time.

use headstart_block::ErrorKind;
use headstart_plot::{Axis, Chart, Picture, Rule, Series};
use tiny_skia::Pixmap;

/// A line from corner to corner in an otherwise plain picture.
fn diagonal() -> Picture {
    let chart =
        Chart::new(Axis::linear("time [s]").from(0.0).to(10.0), Axis::share("share <of> \"all\" & more"))
            .with(Series::line("a", vec![(0.0, 0.0), (10.0, 1.0)]))
            .rule(Rule::x(2.0, "early"));
    Picture::new("A diagonal").note("Made up.").with(chart)
}

/// The numbers of the attributes of that name, in order.
fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
    let start = format!(" {attribute}=\"");
    let parts = svg.split(&start).skip(1);
    parts.filter_map(|part| part.split('"').next()?.parse().ok()).collect()
}

#[test]
fn the_svg_says_it_all() {
    let svg = diagonal().svg();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
    let said = ["A diagonal", "Made up.", "time [s]", "share &lt;of&gt; &quot;all&quot; &amp; more", "early"];
    for text in said {
        assert!(svg.contains(&format!(">{text}</text>")), "no {text}: {svg}");
    }
    for label in ["0", "2", "4", "6", "8", "10", "0.2", "1.0"] {
        assert!(svg.contains(&format!(">{label}</text>")), "no {label}: {svg}");
    }
    // Each element is closed, by itself or at the end.
    let open = svg.matches('<').count() - svg.matches("</").count();
    assert_eq!(open, svg.matches("/>").count() + svg.matches("</").count());
    let (width, height) = (numbers(&svg, "width")[0], numbers(&svg, "height")[0]);
    let places = numbers(&svg, "x").into_iter().chain(numbers(&svg, "cx"));
    assert!(places.into_iter().all(|x| (0.0..=width).contains(&x)));
    let places = numbers(&svg, "y").into_iter().chain(numbers(&svg, "cy"));
    assert!(places.into_iter().all(|y| (0.0..=height).contains(&y)));
    assert_eq!(svg, diagonal().svg());
}

#[test]
fn the_png_has_its_pixels() {
    let svg = diagonal().svg();
    let (width, height) = (numbers(&svg, "width")[0], numbers(&svg, "height")[0]);
    let (cx, cy) = (numbers(&svg, "cx"), numbers(&svg, "cy"));
    for scale in [1.0, 2.0] {
        let png = diagonal().png(scale).unwrap();
        assert_eq!(png, diagonal().png(scale).unwrap());
        let pixels = Pixmap::decode_png(&png).unwrap();
        assert_eq!((f64::from(pixels.width()), f64::from(pixels.height())), (width * scale, height * scale));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the picture")]
        let at = |x: f64, y: f64| {
            let pixel = pixels.pixel((x * scale) as u32, (y * scale) as u32).unwrap();
            (pixel.red(), pixel.green(), pixel.blue())
        };
        assert_eq!(at(1.0, 1.0), (255, 255, 255));
        // The line's two ends and its middle, where the SVG has them; above and below it nothing.
        let blue = (0x00, 0x72, 0xb2);
        let (middle_x, middle_y) = ((cx[0] + cx[1]) / 2.0, (cy[0] + cy[1]) / 2.0);
        assert_eq!(
            [at(cx[0] + 2.0, cy[0] - 1.5), at(cx[1] - 2.0, cy[1] + 1.5), at(middle_x, middle_y)],
            [blue; 3]
        );
        let around = [at(middle_x + 5.0, middle_y + 13.0), at(middle_x - 5.0, middle_y - 13.0)];
        assert_eq!(around, [(255, 255, 255); 2]);
        // The title is there, and letters are dark.
        let dark = (14..80).flat_map(|x| (14..32).map(move |y| (x, y)));
        let dark = dark.filter(|(x, y)| at(f64::from(*x), f64::from(*y)).0 < 0x80).count();
        assert!(dark > 100, "{dark} dark pixels of the title");
    }
}

#[test]
fn scales_that_are_too_large_or_no_numbers_are_refused() {
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e6] {
        assert_eq!(diagonal().png(scale).unwrap_err().kind(), ErrorKind::Invalid, "{scale}");
    }
    assert!(Picture::new("").png(1.0).is_ok() && Picture::new("").svg().contains("<svg"));
}
