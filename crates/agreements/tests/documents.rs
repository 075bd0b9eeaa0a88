//! Documents in their three languages: what is written reads as the same, and what is not
//! understood is refused with the place.

mod common;

use common::*;
use proptest::prelude::*;
use weir_agree::*;
use weir_units::BitRate;

const FIG2: &str = include_str!("../docs/fig2.xml");

fn read_fig2(from: &str, to: &str) -> Result<Offer, Fault> {
    assert!(FIG2.contains(from), "{from}");
    Offer::read(&FIG2.replacen(from, to, 1), Language::Xml)
}

/// The code of the fault and the place it names.
fn refused(from: &str, to: &str) -> (FaultCode, String) {
    let fault = read_fig2(from, to).unwrap_err();
    (fault.code, fault.at.unwrap().what)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn an_offer_reads_as_it_was_written_in_every_language(offer in any_offer()) {
        for language in Language::ALL {
            let text = offer.write(language);
            prop_assert_eq!(Language::guess(&text), language);
            let read = Offer::read(&text, language);
            prop_assert_eq!(read.as_ref(), Ok(&offer), "{}", text);
        }
    }

    #[test]
    fn a_template_reads_as_it_was_written_in_every_language(template in any_template()) {
        for language in Language::ALL {
            let text = template.write(language);
            let read = Template::read(&text, language);
            prop_assert_eq!(read.as_ref(), Ok(&template), "{}", text);
        }
    }

    #[test]
    fn an_agreement_reads_as_it_was_written_in_every_language(agreement in any_agreement()) {
        for language in Language::ALL {
            let text = agreement.write(language);
            let read = Agreement::read(&text, language);
            prop_assert_eq!(read.as_ref(), Ok(&agreement), "{}", text);
        }
    }

    #[test]
    fn no_text_makes_the_reading_panic(
        text in ".{0,200}",
        is_rich: bool,
        [cut, insert, end] in [0..4096_usize, 0..4096, 0..4096],
        piece in "[<>&;\"'/=: a-z!\\[\\]-]{0,8}",
    ) {
        let whole = if is_rich { rich() } else { FIG2.to_owned() };
        let [cut, insert, end] = [cut, insert, end].map(|at| at % whole.len());
        let broken = format!("{}{piece}{}", &whole[..insert], &whole[insert..]);
        let shortened = format!("{}{}", &whole[..insert.min(end)], &whole[insert.max(end)..]);
        for text in [text.as_str(), &whole[..cut], &broken, &shortened] {
            for language in Language::ALL {
                let _fault = Offer::read(text, language);
            }
        }
    }
}

#[test]
fn the_papers_figure_2_is_understood() {
    assert_eq!(Offer::read(FIG2, Language::Xml).unwrap(), fig2());
}

#[test]
fn what_is_written_of_figure_2_is_figure_2() {
    let lines = |text: &str| text.split_whitespace().collect::<String>();
    let part = |text: &str| {
        let start = text.find("<wsag:ServiceDescriptionTerm").unwrap();
        let end = "</wsag:ServiceDescriptionTerm>";
        text[start..text.find(end).unwrap() + end.len()].to_owned()
    };
    assert_eq!(lines(&part(&fig2().write(Language::Xml))), lines(&part(FIG2)));
}

#[test]
fn the_documentations_examples_are_what_is_written_and_read() {
    // With WEIR_BLESS set they are written again.
    let check = |name: &str, written: String| {
        let path = format!("{}/docs/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(&path, format!("{}\n", written.trim_end())).unwrap();
        }
        let example = std::fs::read_to_string(&path).unwrap();
        assert_eq!(example.trim_end(), written.trim_end(), "{name}");
    };
    let [xml, json, toml] = Language::ALL;
    for language in Language::ALL {
        check(&format!("offer.{language}"), full_offer().write(language));
        check(&format!("template.{language}"), template().write(language));
        check(&format!("agreement.{language}"), agreement().write(language));
    }
    let fault = read_fig2("Mbps", "MBps").unwrap_err();
    check("fault.xml", fault.write(xml, utc("2026-11-20T11:00:00Z")));
    check("fault.json", fault.write(json, Utc::MIN));
    assert!(fault.write(toml, Utc::MIN).starts_with("[fault]"));
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    for language in Language::ALL {
        let text = format!("\u{feff}{}", fig2().write(language));
        assert_eq!(Language::guess(&text), language);
        assert_eq!(Offer::read(&text, language).as_ref(), Ok(&fig2()));
    }
}

#[test]
fn prefixes_are_free() {
    let text = FIG2
        .replace("wsag:Name", "w:Name")
        .replace("wsag:ServiceName", "w:ServiceName")
        .replace("xmlns:wsag=", "xmlns:w=\"http://schemas.ggf.org/graap/2007/03/ws-agreement\" xmlns=")
        .replace("wsag:", "")
        .replace("qos:", "x:")
        .replace("xmlns:qos", "xmlns:x");
    assert_eq!(Offer::read(&text, Language::Xml).unwrap(), fig2());
}

#[test]
fn every_unit_is_understood_and_no_other() {
    for (unit, rate) in [
        ("bps", 19),
        ("Kbps", 19_000),
        ("Mbps", 19_000_000),
        ("Gbps", 19_000_000_000),
        ("Kibps", 19 << 10),
        ("Mibps", 19 << 20),
        ("Gibps", 19 << 30),
    ] {
        assert_eq!(read_fig2("Mbps", unit).unwrap().terms.min, BitRate(rate), "{unit}");
    }
    for unit in ["", "mbps", "MBps", "Mbit", "Tbps", "bps ", "m/s"] {
        let fault = read_fig2("Mbps", unit).unwrap_err();
        assert_eq!(fault.code, FaultCode::UnknownUnit, "{unit}");
        assert_eq!(fault.accepted, ["Gbps", "Mbps", "Gibps", "Mibps", "Kbps", "Kibps", "bps"]);
    }
    assert_eq!(refused("\n      unit=\"Mbps\"", ""), (FaultCode::Missing, "qos:NetMinBandwidth".into()));
}

#[test]
fn a_bandwidth_is_a_number_that_is_not_negative_and_not_too_large() {
    assert_eq!(read_fig2(" 19 ", "0.5").unwrap().terms.min, BitRate::kbit(500));
    for (text, code) in [
        ("-19", FaultCode::Negative),
        ("-0.5", FaultCode::Negative),
        ("NaN", FaultCode::NotANumber),
        ("INF", FaultCode::NotANumber),
        ("-INF", FaultCode::NotANumber),
        ("1e9", FaultCode::NotANumber),
        ("1.2.3", FaultCode::NotANumber),
        ("19Mbps", FaultCode::NotANumber),
        ("", FaultCode::NotANumber),
        ("99999999999999999999999999", FaultCode::RateTooLarge),
    ] {
        assert_eq!(refused(" 19 ", text), (code, "qos:NetMinBandwidth".into()), "{text}");
    }
}

#[test]
fn a_unit_in_the_number_does_not_add_to_that_of_the_attribute() {
    for number in ["5G", "5 M", "5Ki", "1e"] {
        let text = format!("unit=\"bps\">{number}<");
        assert_eq!(refused("unit=\"Mbps\"> 19 <", &text).0, FaultCode::NotANumber, "{number}");
    }
}

#[test]
fn a_fault_names_the_element_its_place_and_what_would_be_accepted() {
    let fault = read_fig2("Mbps", "MBps").unwrap_err();
    assert_eq!(
        fault.to_string(),
        "cannot read qos:NetMinBandwidth at line 13, column 5 of the xml: the unit `MBps` is not known; accepted: \
         Gbps, Mbps, Gibps, Mibps, Kbps, Kibps, bps"
    );
    let place = fault.at.unwrap();
    assert_eq!((place.line, place.column), (Some(13), Some(5)));
}

#[test]
fn what_is_not_known_is_refused_wherever_it_stands() {
    let max = "<qos:NetMaxBandwidth";
    for (new, code, what) in [
        ("<qos:NetJitter/>", FaultCode::UnknownElement, "qos:NetJitter"),
        ("<NetJitter/>", FaultCode::UnknownNamespace, "NetJitter"),
        ("<x:Jitter xmlns:x='urn:x'/>", FaultCode::UnknownNamespace, "{urn:x}Jitter"),
        ("<y:Jitter/>", FaultCode::UnknownNamespace, "y:Jitter"),
        (
            "<qos:NetMinBandwidth unit='Mbps'>1</qos:NetMinBandwidth>",
            FaultCode::Repeated,
            "qos:NetMinBandwidth",
        ),
        ("for free", FaultCode::BadValue, "qos:ServerParams"),
    ] {
        assert_eq!(refused(max, &format!("{new}{max}")), (code, what.into()), "{new}");
    }
    assert_eq!(refused("schemas.webqos", "schemas.webqos2").0, FaultCode::UnknownNamespace);
    assert_eq!(refused("graap/2007/03", "graap/2005/09").0, FaultCode::UnknownNamespace);
    assert_eq!(refused("unit=", "weight='3' unit=").0, FaultCode::UnknownAttribute);
    assert_eq!(
        refused("wsag:ServiceName=", "xmlns:x='urn:x' x:y='' wsag:ServiceName=").0,
        FaultCode::UnknownNamespace
    );
    assert_eq!(refused(">AgreementResponder<", ">AgreementInitiator<").0, FaultCode::BadValue);
    assert_eq!(
        refused("<wsag:AgreementInitiator>customer</wsag:AgreementInitiator>", "").0,
        FaultCode::Missing
    );
    let located =
        "<wsag:AgreementOffer xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance' xsi:schemaLocation='a b'";
    assert!(read_fig2("<wsag:AgreementOffer", located).is_ok());
    let fault = Template::read(FIG2, Language::Xml).unwrap_err();
    assert_eq!(fault.code, FaultCode::WrongDocument);
}

#[test]
fn a_guarantee_other_than_the_one_that_is_given_is_refused() {
    let text = fig2().write(Language::Xml);
    let offer = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Offer::read(&text.replacen(from, to, 1), Language::Xml).map_err(|fault| fault.code)
    };
    assert_eq!(offer("<wsag:BusinessValueList/>", ""), Ok(fig2()));
    assert_eq!(offer(">NetMinBandwidth<", ">NetJitter<"), Err(FaultCode::BadValue));
    assert_eq!(offer("ServiceProvider\"", "ServiceConsumer\""), Err(FaultCode::BadValue));
    let penalty = "<wsag:BusinessValueList><wsag:Penalty/></wsag:BusinessValueList>";
    assert_eq!(offer("<wsag:BusinessValueList/>", penalty), Err(FaultCode::UnknownElement));
}

/// Fig. 2 with other terms in its outermost `All`.
fn with_terms(terms: &str) -> Result<Offer, Fault> {
    Offer::read(&with_terms_as_text(terms), Language::Xml)
}

fn with_terms_as_text(terms: &str) -> String {
    let (start, end) = (FIG2.find("<wsag:All>").unwrap(), FIG2.find("</wsag:All>").unwrap());
    format!("{}<wsag:All>{terms}{}", &FIG2[..start], &FIG2[end..])
}

/// A service description with this minimum.
fn described(service: &str, min: &str) -> String {
    format!(
        "<wsag:ServiceDescriptionTerm wsag:Name='server_parameters' wsag:ServiceName='{service}'>\
         <q:ServerParams xmlns:q='schemas.webqos'><q:NetMinBandwidth unit='Mbps'>{min}</q:NetMinBandwidth>\
         <q:NetMaxBandwidth unit='Mbps'>19</q:NetMaxBandwidth></q:ServerParams></wsag:ServiceDescriptionTerm>"
    )
}

/// A guarantee with this name, of this indicator, and with this value.
fn guarantee(name: &str, indicator: &str, values: &str) -> String {
    format!(
        "<wsag:GuaranteeTerm wsag:Name='{name}' wsag:Obligated='ServiceProvider'>\
         <wsag:ServiceScope wsag:ServiceName='httpd'/><wsag:ServiceLevelObjective><wsag:KPITarget>\
         <wsag:KPIName>{indicator}</wsag:KPIName></wsag:KPITarget></wsag:ServiceLevelObjective>\
         <wsag:BusinessValueList>{values}</wsag:BusinessValueList></wsag:GuaranteeTerm>"
    )
}

/// A reference to a service, with this in its endpoint.
fn reference(service: &str, endpoint: &str) -> String {
    format!(
        "<wsag:ServiceReference wsag:Name='where' wsag:ServiceName='{service}'>\
         <a:EndpointReference xmlns:a='http://www.w3.org/2005/08/addressing'>{endpoint}</a:EndpointReference>\
         </wsag:ServiceReference>"
    )
}

/// Properties of the service with one variable.
fn properties(name: &str, location: &str) -> String {
    format!(
        "<wsag:ServiceProperties wsag:Name='p' wsag:ServiceName='httpd'><wsag:VariableSet>\
         <wsag:Variable wsag:Name='{name}' wsag:Metric='rate'><wsag:Location>{location}</wsag:Location>\
         </wsag:Variable></wsag:VariableSet></wsag:ServiceProperties>"
    )
}

/// Fig. 2 with every kind of term.
fn rich() -> String {
    let terms = [
        described("httpd", "19"),
        nested(
            "ExactlyOne",
            2,
            &["gold", "lead"].map(|name| guarantee(name, "NetMinBandwidth", "")).concat(),
        ),
        reference("httpd", "<a:Address>http://10.0.0.7:8001/</a:Address>"),
        properties("NetMinBandwidth", "//qos:NetMinBandwidth"),
    ];
    let text = with_terms_as_text(&nested("All", 3, &terms.concat()));
    assert!(Offer::read(&text, Language::Xml).is_ok(), "{text}");
    text
}

/// The same text some levels deeper.
fn nested(kind: &str, depth: usize, inside: &str) -> String {
    format!("{}{inside}{}", format!("<wsag:{kind}>").repeat(depth), format!("</wsag:{kind}>").repeat(depth))
}

#[test]
fn terms_inside_of_all_mean_what_they_mean_outside() {
    let plain = described("httpd", "19");
    for kind in ["All", "ExactlyOne", "OneOrMore"] {
        for depth in [0, 1, 5] {
            assert_eq!(with_terms(&nested(kind, depth, &plain)), Ok(fig2()), "{depth} {kind}");
        }
    }
    let fault = with_terms(&nested("All", 30, &plain)).unwrap_err();
    assert_eq!(fault.code, FaultCode::TooDeep);
}

#[test]
fn first_alternative_that_can_be_promised_by_its_words_is_taken() {
    let [a, b] = ["19", "12"].map(|min| described("httpd", min));
    let min = |terms: &str| with_terms(terms).map(|offer| offer.terms.min);
    let jitter = guarantee("jitter", "NetJitter", "");
    assert_eq!(min(&nested("ExactlyOne", 1, &format!("{a}{b}"))), Ok(BitRate::mbit(19)));
    assert_eq!(min(&nested("OneOrMore", 1, &format!("{b}{a}"))), Ok(BitRate::mbit(12)));
    // The first alternative asks for a guarantee that is not given.
    let first = nested("All", 1, &format!("{a}{jitter}"));
    assert_eq!(min(&nested("ExactlyOne", 1, &format!("{first}{b}"))), Ok(BitRate::mbit(12)));
    // An alternative beside the description.
    let either = nested("ExactlyOne", 1, &format!("{jitter}{}", guarantee("rate", "NetMinBandwidth", "")));
    assert_eq!(min(&format!("{a}{either}")), Ok(BitRate::mbit(19)));
    // None of them: the first one's fault.
    let fault = with_terms(&nested("ExactlyOne", 1, &first)).unwrap_err();
    assert_eq!((fault.code, fault.at.unwrap().what), (FaultCode::BadValue, "wsag:KPIName".to_owned()));
    assert_eq!(with_terms("<wsag:ExactlyOne/>").unwrap_err().code, FaultCode::Missing);
    let many = nested("ExactlyOne", 1, &a.repeat(2)).repeat(8);
    assert_eq!(with_terms(&many).unwrap_err().code, FaultCode::TooLong);
}

#[test]
fn second_service_is_refused_with_the_way_out() {
    let fault = with_terms(&[described("httpd", "19"), described("ftpd", "1")].concat()).unwrap_err();
    assert_eq!(fault.code, FaultCode::Repeated);
    assert!(fault.to_string().ends_with("this is the second: make an offer for each"), "{fault}");
    assert_eq!(with_terms("").unwrap_err().code, FaultCode::Missing);
    assert_eq!(with_terms(&guarantee("rate", "NetMinBandwidth", "")).unwrap_err().code, FaultCode::Missing);
}

#[test]
fn guarantees_keep_their_names_in_the_agreement() {
    let two = ["gold", "silver"].map(|name| guarantee(name, "NetMinBandwidth", ""));
    let offer = with_terms(&format!("{}{}", described("httpd", "19"), two.concat())).unwrap();
    assert_eq!(offer.service.guarantees.iter().map(Name::as_str).collect::<Vec<_>>(), ["gold", "silver"]);
    let agreement = Agreement { offer, guarantee_state: GuaranteeState::Violated, ..agreement() };
    let text = agreement.write(Language::Xml);
    for name in ["gold", "silver"] {
        assert!(text.contains(&format!("<wsag:GuaranteeTermState wsag:termName=\"{name}\">")), "{text}");
    }
    assert_eq!(Agreement::read(&text, Language::Xml).as_ref(), Ok(&agreement));
    let refused = |text: String| Agreement::read(&text, Language::Xml).unwrap_err().code;
    assert_eq!(refused(text.replacen(">Violated<", ">Fulfilled<", 1)), FaultCode::Contradiction);
    assert_eq!(refused(text.replacen("termName=\"gold\"", "termName=\"lead\"", 1)), FaultCode::BadValue);

    let same = guarantee("gold", "NetMinBandwidth", "").repeat(2);
    let fault = with_terms(&format!("{}{same}", described("httpd", "19"))).unwrap_err();
    assert_eq!(fault.code, FaultCode::Repeated);
    let many = (0..=Guarantees::MAX).map(|nth| guarantee(&format!("g{nth}"), "NetMinBandwidth", ""));
    let fault = with_terms(&format!("{}{}", described("httpd", "19"), many.collect::<String>())).unwrap_err();
    assert_eq!(fault.code, FaultCode::TooLong);
}

#[test]
fn importance_is_read_and_money_is_refused() {
    let with = |values: &str| {
        with_terms(&format!("{}{}", described("httpd", "19"), guarantee("rate", "NetMinBandwidth", values)))
            .map(drop)
            .map_err(|fault| (fault.code, fault.at.unwrap().what))
    };
    assert_eq!(with("<wsag:Importance>3</wsag:Importance>"), Ok(()));
    assert_eq!(
        with("<wsag:Importance>high</wsag:Importance>"),
        Err((FaultCode::BadValue, "wsag:Importance".into()))
    );
    assert_eq!(with("<wsag:Reward/>"), Err((FaultCode::UnknownElement, "wsag:Reward".into())));
}

#[test]
fn reference_to_the_service_is_kept_and_of_another_one_refused() {
    let address = "<a:Address>http://10.0.0.7:8001/rotate?by=20&amp;x</a:Address>";
    let described = described("httpd", "19");
    let offer = with_terms(&format!("{described}{}", reference("httpd", address))).unwrap();
    let kept = offer.service.reference.clone().unwrap();
    assert_eq!((kept.term.as_str(), kept.address.as_str()), ("where", "http://10.0.0.7:8001/rotate?by=20&x"));
    for language in Language::ALL {
        assert_eq!(Offer::read(&offer.write(language), language).as_ref(), Ok(&offer), "{language}");
    }
    let refused = |references: &str| with_terms(&format!("{described}{references}")).unwrap_err().code;
    assert_eq!(refused(&reference("ftpd", address)), FaultCode::BadValue);
    assert_eq!(refused(&reference("httpd", "")), FaultCode::Missing);
    assert_eq!(refused(&reference("httpd", &format!("{address}<a:Metadata/>"))), FaultCode::UnknownElement);
    assert_eq!(refused(&reference("httpd", address).repeat(2)), FaultCode::Repeated);
}

#[test]
fn properties_may_say_what_the_terms_mean_and_nothing_else() {
    let with = |name: &str, location: &str| {
        let properties = properties(name, location);
        with_terms(&format!("{}{properties}", described("httpd", "19"))).map_err(|fault| fault.code)
    };
    assert_eq!(with("NetMinBandwidth", "//qos:ServerParams/qos:NetMinBandwidth"), Ok(fig2()));
    assert_eq!(with("NetMaxBandwidth", "//x:NetMaxBandwidth[@unit='Mbps']"), Ok(fig2()));
    assert_eq!(with("NetMinBandwidth", "//qos:NetMaxBandwidth"), Err(FaultCode::BadValue));
    assert_eq!(with("NetJitter", "//qos:NetJitter"), Err(FaultCode::BadValue));
}

#[test]
fn json_and_toml_bound_the_names_of_guarantees() {
    let text = fig2().write(Language::Json);
    assert!(!text.contains("guarantees") && !text.contains("reference"), "{text}");
    let with = |names: &str| {
        let text = text.replacen("\"term\"", &format!("\"guarantees\": {names}, \"term\""), 1);
        Offer::read(&text, Language::Json).map_err(|fault| fault.code)
    };
    assert_eq!(with("[\"net_min_bandwidth\"]"), Ok(fig2()));
    assert_eq!(with("[\"gold\"]").unwrap().service.guarantees, Guarantees::new(vec![name("gold")]).unwrap());
    for bad in
        ["[]".to_owned(), "[\"a\", \"a\"]".to_owned(), "[\"a\", \"b\", \"c\", \"d\", \"e\"]".to_owned()]
    {
        assert_eq!(with(&bad).unwrap_err(), FaultCode::BadValue, "{bad}");
    }
}

#[test]
fn what_is_not_well_formed_is_refused() {
    for (from, to) in [
        ("</wsag:All>", ""),
        ("</wsag:All>", "</wsag:Any>"),
        ("</wsag:AgreementOffer>", ""),
        ("</wsag:AgreementOffer>", "</wsag:AgreementOffer><more/>"),
        ("</wsag:AgreementOffer>", "</wsag:AgreementOffer>more"),
        ("<?xml", "<!-- --><?xml"),
        ("<?xml", "text<?xml"),
        ("UTF-8", "UTF-16"),
        ("?>", "?><?php system() ?>"),
        ("unit=\"Mbps\"", "unit=\"Mbps\" unit=\"Kbps\""),
        ("unit=\"Mbps\"", "unit=Mbps"),
    ] {
        assert_eq!(refused(from, to).0, FaultCode::Malformed, "{from} -> {to}");
    }
    for text in ["", " ", "<", "<a", "\u{feff}", "]]>"] {
        assert_eq!(Offer::read(text, Language::Xml).unwrap_err().code, FaultCode::Malformed, "{text}");
    }
}

#[test]
fn entities_do_not_expand_into_anything() {
    let laughs = "?><!DOCTYPE lolz [<!ENTITY lol \"lol\"><!ENTITY lol2 \"&lol;&lol;&lol;&lol;\">]>";
    assert_eq!(refused("?>", laughs).0, FaultCode::Dtd);
    assert_eq!(
        refused("?>", "?><!DOCTYPE wsag:AgreementOffer SYSTEM \"file:///etc/passwd\">").0,
        FaultCode::Dtd
    );
    assert_eq!(refused(" 19 ", "&lol2;"), (FaultCode::Entity, "the entity &lol2;".into()));
    assert_eq!(refused("\"httpd\"", "\"&lol2;\"").0, FaultCode::Entity);
    assert_eq!(refused("customer", "&#0;").0, FaultCode::Entity);
    assert_eq!(refused("customer", "cust&#10;omer").0, FaultCode::BadValue);
    let offer = read_fig2("customer", "A&amp;B &#x26; <![CDATA[<C>]]>").unwrap();
    assert_eq!(offer.context.initiator, name("A&B & <C>"));
}

#[test]
fn depth_length_and_size_have_limits() {
    let deep = "<qos:a>".repeat(8_000);
    assert_eq!(refused("<qos:NetMaxBandwidth", &deep).0, FaultCode::TooDeep);
    assert_eq!(refused("customer", &"x".repeat(3_000)).0, FaultCode::TooLong);
    assert_eq!(refused("customer", &"x".repeat(257)).0, FaultCode::BadValue);
    assert_eq!(refused("httpd", &"x".repeat(60_000)).0, FaultCode::TooLong);
    assert_eq!(refused("schemas.webqos", &"x".repeat(60_000)).0, FaultCode::TooLong);
    let many: String = (0..1_000).map(|i| format!(" a{i}=''")).collect();
    assert_eq!(refused("unit=", &format!("{many} unit=")).0, FaultCode::TooManyAttributes);
    let megabyte = FIG2.replace("httpd", &"x".repeat(1 << 20));
    for language in Language::ALL {
        assert_eq!(Offer::read(&megabyte, language).unwrap_err().code, FaultCode::DocumentTooLarge);
    }
    let nested = "[".repeat(60_000);
    assert_eq!(Offer::read(&nested, Language::Json).unwrap_err().code, FaultCode::BadValue);
    let nested = format!("a = {}", "[".repeat(60_000));
    assert_eq!(Offer::read(&nested, Language::Toml).unwrap_err().code, FaultCode::Malformed);
    for (before, behind) in [("", "a = 1"), ("[", "a]\nb = 1"), ("a = {", "a = 1}")] {
        let dotted = format!("{before}{}{behind}", "a.".repeat(30_000));
        assert!(Offer::read(&dotted, Language::Toml).is_err());
    }
}

#[test]
fn longest_names_and_all_terms_fit_the_largest_document_with_room() {
    let long = name(&"\"".repeat(Name::MAX_LEN));
    let mut offer = full_offer();
    for text in [&mut offer.context.initiator, &mut offer.service.name, &mut offer.service.term] {
        *text = long.clone();
    }
    let Context { responder, template_id, template_name, .. } = &mut offer.context;
    for text in [&mut offer.id, &mut offer.name, responder, template_id, template_name] {
        *text = Some(long.clone());
    }
    offer.terms.selector.container = Some(long.clone());
    let distinct = |nth: usize| name(&format!("{nth}{}", "\"".repeat(Name::MAX_LEN - 1)));
    offer.service.guarantees = Guarantees::new((0..Guarantees::MAX).map(distinct).collect()).unwrap();
    offer.service.reference = Some(Reference { term: long.clone(), address: long.clone() });
    let agreement = Agreement { id: long, offer, ..agreement() };
    for language in Language::ALL {
        let text = agreement.write(language);
        assert!(text.len() < MAX_DOCUMENT / 4 * 3, "{}", text.len());
        assert_eq!(Agreement::read(&text, language).as_ref(), Ok(&agreement), "{language}");
    }
}

#[test]
fn json_and_toml_faults_name_the_field_and_its_place() {
    let json = fig2().write(Language::Json);
    let read = |from: &str, to: &str| {
        assert!(json.contains(from), "{from}");
        let fault = Offer::read(&json.replacen(from, to, 1), Language::Json).unwrap_err();
        let at = fault.at.unwrap();
        (fault.code, at.what, at.line.is_some())
    };
    let min = "\"min\": 19000000";
    assert_eq!(read(min, "\"min\": -1"), (FaultCode::BadValue, "terms.min".into(), true));
    assert_eq!(read(min, "\"min\": 1e400"), (FaultCode::Malformed, "terms.min".into(), true));
    assert_eq!(read(min, "\"min\": 10000000000001"), (FaultCode::BadValue, "terms.min".into(), true));
    assert_eq!(read(min, "\"min\": \"19 apples\""), (FaultCode::BadValue, "terms.min".into(), true));
    assert_eq!(read(min, "\"min\": NaN").0, FaultCode::Malformed);
    assert_eq!(read(min, "\"min\": 1, \"min\": 2").0, FaultCode::Repeated);
    assert_eq!(read(min, "\"jitter\": 1").0, FaultCode::UnknownElement);
    assert_eq!(read("\"initiator\": \"customer\"", "\"responder\": \"x\"").0, FaultCode::Missing);
    assert!(Offer::read(&json.replace("19000000", "\"19Mbps\""), Language::Json).is_ok());
    assert_eq!(Offer::read(&format!("{json}{json}"), Language::Json).unwrap_err().code, FaultCode::Malformed);

    let toml = fig2().write(Language::Toml);
    let read = |from: &str, to: &str| {
        assert!(toml.contains(from), "{from} in {toml}");
        Offer::read(&toml.replacen(from, to, 1), Language::Toml).unwrap_err()
    };
    for (value, code) in
        [("nan", FaultCode::BadValue), ("-5", FaultCode::BadValue), ("", FaultCode::Malformed)]
    {
        let fault = read("min = 19000000", &format!("min = {value}"));
        assert_eq!(fault.code, code, "{fault}");
        assert!(fault.at.unwrap().line.is_some());
    }
    assert_eq!(read("min = 19000000", "").code, FaultCode::Missing);
    assert_eq!(read("min = 19000000", "jitter = 1").code, FaultCode::UnknownElement);
}
