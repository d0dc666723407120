package nodeconfig

import (
	"fmt"
	"math"
	"strings"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/logging"
)

// Values of logging.format.
const (
	LogText = "text"
	LogJSON = "json"
)

// defaultFlushFrequency is the kubelet's default. Quartet writes each line at once.
const defaultFlushFrequency = 5 * time.Second

func setLoggingDefaults(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	setDefault(&cfg.Logging.Format, LogText)
	setDefault(&cfg.Logging.FlushFrequency.Duration.Duration, defaultFlushFrequency)
	cfg.Logging.FlushFrequency.SerializeAsString = true // "5s", as every other duration, and not nanoseconds
}

// validateLogging reports values that the kubelet refuses.
func validateLogging(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	logging := &cfg.Logging
	switch {
	case logging.Format != LogText && logging.Format != LogJSON:
		errs.add("logging.format", fmt.Sprintf("is %q, must be %s or %s", logging.Format, LogText, LogJSON))
	case logging.Format == LogJSON && !gateEnabled(cfg, gateLoggingBeta):
		errs.add(
			"logging.format",
			fmt.Sprintf("%s needs the feature gate %s: remove the gate, or set %s", LogJSON, gateLoggingBeta, LogText),
		)
	case logging.Format == LogJSON && len(logging.VModule) > 0:
		errs.add("logging.vmodule", "is for the format text only: leave one of the two out")
	}
	if frequency := logging.FlushFrequency.Duration.Duration; frequency < 0 {
		errs.add("logging.flushFrequency", fmt.Sprintf("is %s, must be more than 0", frequency))
	}
	if logging.Verbosity > math.MaxInt32 {
		errs.add("logging.verbosity", fmt.Sprintf("is %d, must be at most %d", logging.Verbosity, math.MaxInt32))
	}
	for i, item := range logging.VModule {
		field := fmt.Sprintf("logging.vmodule[%d]", i)
		if item.FilePattern == "" || strings.ContainsAny(item.FilePattern, "=,") {
			errs.add(
				field+".filePattern",
				fmt.Sprintf(
					"%q must be the name of a package or file, or a pattern of such, without an equals sign or comma",
					item.FilePattern,
				),
			)
		}
		if item.Verbosity > math.MaxInt32 {
			errs.add(field+".verbosity", fmt.Sprintf("is %d, must be at most %d", item.Verbosity, math.MaxInt32))
		}
	}
	for _, options := range []struct {
		field string
		value *logsapi.OutputRoutingOptions
	}{{"logging.options.text", &logging.Options.Text.OutputRoutingOptions}, {"logging.options.json", &logging.Options.JSON.OutputRoutingOptions}} {
		if (options.value.SplitStream || options.value.InfoBufferSize.Value() != 0) && !gateEnabled(cfg, gateLoggingAlpha) {
			errs.add(
				options.field,
				fmt.Sprintf("splitStream and infoBufferSize need the feature gate %s: leave them out", gateLoggingAlpha),
			)
		}
	}
}

// overrideLogFormat applies --logging-format to the file's format, and returns why it cannot.
func (f *flags) overrideLogFormat(cfg *kubeletconfigv1beta1.KubeletConfiguration) []error {
	if !f.given("logging-format") {
		return nil
	}
	switch {
	case f.logFormat != LogText && f.logFormat != LogJSON:
		return []error{fmt.Errorf("--logging-format: %q must be %s or %s", f.logFormat, LogText, LogJSON)}
	case f.logFormat == LogJSON && !gateEnabled(cfg, gateLoggingBeta):
		return []error{fmt.Errorf("--logging-format: %s needs the feature gate %s: remove the gate, or use %s",
			LogJSON, gateLoggingBeta, LogText)}
	case f.logFormat == LogJSON && len(cfg.Logging.VModule) > 0:
		return []error{fmt.Errorf("--logging-format: %s: the file's logging.vmodule is for the format %s only: "+
			"leave one of the two out", LogJSON, LogText)}
	}
	cfg.Logging.Format = f.logFormat
	return nil
}

// Logging returns the configuration of log lines.
func (c Config) Logging() logging.Config {
	file := &c.Kubelet.Logging
	lines := logging.Config{JSON: file.Format == LogJSON, Verbosity: c.Verbosity}
	for _, item := range file.VModule {
		lines.Parts = append(lines.Parts, logging.Part{Pattern: item.FilePattern, Verbosity: int(item.Verbosity)})
	}
	return lines
}
