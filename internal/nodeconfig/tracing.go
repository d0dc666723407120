package nodeconfig

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

const (
	// DefaultTracingEndpoint is where traces go when the configuration has a tracing section without an endpoint: OTLP's default port.
	DefaultTracingEndpoint = "localhost:4317"
	// maxSamplingRate is the rate at which every trace is kept.
	maxSamplingRate = 1_000_000
)

// tracingSchemes are the name resolvers of gRPC that an endpoint may name.
var tracingSchemes = []string{"dns", "unix", "unix-abstract"}

// validateTracing reports what the kubelet refuses in a tracing section.
func validateTracing(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if cfg.Tracing == nil {
		return
	}
	if rate := cfg.Tracing.SamplingRatePerMillion; rate != nil && (*rate < 0 || *rate > maxSamplingRate) {
		errs.add("tracing.samplingRatePerMillion", fmt.Sprintf("is %d, must be from 0 to %d", *rate, maxSamplingRate))
	}
	if endpoint := cfg.Tracing.Endpoint; endpoint != nil {
		if problem := tracingEndpointProblem(*endpoint); problem != "" {
			errs.add("tracing.endpoint", problem)
		}
	}
}

// tracingEndpointProblem says what is wrong with the address of an OTLP receiver, and does not repeat what may be secret in it.
func tracingEndpointProblem(endpoint string) string {
	const example = "must be HOST:PORT, for example " + DefaultTracingEndpoint + ", or begin with dns:, unix: or unix-abstract:"
	if endpoint == "" {
		return "is empty, " + example
	}
	if !strings.Contains(endpoint, "//") {
		endpoint = "dns://" + endpoint
	}
	parsed, err := url.Parse(endpoint)
	if err != nil {
		return "is no address, " + example
	}
	if !slices.Contains(tracingSchemes, parsed.Scheme) {
		return fmt.Sprintf("begins with %s:, %s", parsed.Scheme, example)
	}
	return ""
}
