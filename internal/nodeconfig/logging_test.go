package nodeconfig

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/logging"
)

func TestLoggingOfTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	write := func(logging string) {
		if err := os.WriteFile(file, []byte(head+"logging: "+logging+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name, logging string
		args          []string
		want          logging.Config
	}{
		{name: "what kubeadm writes", logging: `{flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}`},
		{name: "verbosity", logging: "{verbosity: 4, flushFrequency: 1s}", want: logging.Config{Verbosity: 4}},
		{name: "verbosity of the flag", logging: "{verbosity: 4}", args: []string{"--v=0"}},
		{name: "JSON", logging: "{format: json}", want: logging.Config{JSON: true}},
		{name: "JSON of the flag", logging: "{}", args: []string{"--logging-format=json"}, want: logging.Config{JSON: true}},
		{name: "text of the flag", logging: "{format: json}", args: []string{"--logging-format=text"}},
		{name: "parts", logging: "{vmodule: [{filePattern: worker, verbosity: 5}, {filePattern: pod*, verbosity: 0}]}",
			want: logging.Config{Parts: []logging.Part{{Pattern: "worker", Verbosity: 5}, {Pattern: "pod*"}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			write(test.logging)
			for _, service := range Services() {
				cfg := parse(t, service, append([]string{"--config", file}, test.args...)...)
				if diff := cmp.Diff(test.want, cfg.Logging()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", service, diff)
				}
				if len(cfg.Unsupported) > 0 {
					t.Errorf("%s names %v, want none", service, cfg.Unsupported)
				}
			}
		})
	}
}

func TestAFormatOfTheFlagThatIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	for _, test := range []struct{ content, format, want string }{
		{"", "xml", `--logging-format: "xml" must be text or json`},
		{"", "", `--logging-format: "" must be text or json`},
		{"logging: {vmodule: [{filePattern: a, verbosity: 1}]}", "json", "--logging-format: json: the file's logging.vmodule"},
		{"featureGates: {LoggingBetaOptions: false}", "json", "--logging-format: json needs the feature gate"},
	} {
		if err := os.WriteFile(file, []byte(head+test.content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Parse(PLEG, []string{"--config", file, "--logging-format=" + test.format}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %q: %v, want %q", test.format, test.content, err, test.want)
		}
	}
}

func TestLoggingThatIsRefused(t *testing.T) {
	for logging, want := range map[string]string{
		"logging: {format: xml}": `:3: logging.format: is "xml", must be text or json`,
		"logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}":                    ":3: logging.vmodule: is for the format text only",
		"logging: {flushFrequency: -1s}":                                                        ":3: logging.flushFrequency: is -1s",
		"logging: {verbosity: 4294967295}":                                                      ":3: logging.verbosity: is 4294967295",
		"logging: {vmodule: [{filePattern: '', verbosity: 1}]}":                                 `:3: logging.vmodule[0].filePattern: ""`,
		"logging: {vmodule: [{filePattern: a, verbosity: 1}, {filePattern: b=, verbosity: 1}]}": `:3: logging.vmodule[1].filePattern: "b="`,
		"logging: {options: {json: {splitStream: true}}}":                                       ":3: logging.options.json: splitStream and infoBufferSize need the feature gate LoggingAlphaOptions",
		"logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}":                    ":3: logging.format: json needs the feature gate LoggingBetaOptions",
	} {
		_, errs := Decode("f", []byte(head+logging+"\n"))
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "f"+want) {
			t.Errorf("%s: got %v, want one error that begins with %q", logging, errs, want)
		}
	}
}
