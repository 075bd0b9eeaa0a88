module weir.invalid/grafana

go 1.23.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
