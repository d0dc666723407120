package nodeconfig

import (
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// anyAddress is the default address of the authenticated API of a node of a cluster, as in the kubelet.
const anyAddress = "0.0.0.0"

// setServerDefaults gives the fields of the authenticated API the kubelet's values.
func setServerDefaults(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	setPointer(&cfg.EnableServer, true)
	setPointer(&cfg.EnableDebuggingHandlers, true)
	setPointer(&cfg.EnableSystemLogHandler, true)
	setPointer(&cfg.EnableProfilingHandler, true)
	setPointer(&cfg.Authentication.Anonymous.Enabled, false)
	setPointer(&cfg.Authentication.Webhook.Enabled, true)
	setDefault(&cfg.Authentication.Webhook.CacheTTL, metav1.Duration{Duration: 2 * time.Minute})
	setDefault(&cfg.Authorization.Mode, kubeletconfigv1beta1.KubeletAuthorizationModeWebhook)
	setDefault(&cfg.Authorization.Webhook.CacheAuthorizedTTL, metav1.Duration{Duration: 5 * time.Minute})
	setDefault(&cfg.Authorization.Webhook.CacheUnauthorizedTTL, metav1.Duration{Duration: 30 * time.Second})
}

// apiAddress returns the address of the authenticated API: that of the file, or else, on a node of a cluster, every
// address of the machine, because the API server calls it.
func apiAddress(cfg *Config, set index) string {
	if cfg.Kubeconfig != "" && !set.has("address") {
		return anyAddress
	}
	return cfg.Kubelet.Address
}

// ReadOnlyAddress returns the address of the read-only API, which has no authentication: the address of the file if it
// is a loopback address, and otherwise the default loopback address.
func ReadOnlyAddress(cfg *kubeletconfigv1beta1.KubeletConfiguration) string {
	if ip := net.ParseIP(cfg.Address); ip != nil && ip.IsLoopback() {
		return cfg.Address
	}
	return DefaultAddressIP
}

// validateServer reports values with which the authenticated API cannot work or is not safe.
func validateServer(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if _, err := TLSVersion(cfg.TLSMinVersion); err != nil {
		errs.add("tlsMinVersion", err.Error())
	}
	validateCipherSuites(cfg, errs)
	switch {
	case cfg.TLSCertFile != "" && cfg.TLSPrivateKeyFile == "":
		errs.add("tlsCertFile", "needs tlsPrivateKeyFile beside it")
	case cfg.TLSCertFile == "" && cfg.TLSPrivateKeyFile != "":
		errs.add("tlsPrivateKeyFile", "needs tlsCertFile beside it")
	}
	for field, ttl := range map[string]time.Duration{
		"authentication.webhook.cacheTTL":            cfg.Authentication.Webhook.CacheTTL.Duration,
		"authorization.webhook.cacheAuthorizedTTL":   cfg.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		"authorization.webhook.cacheUnauthorizedTTL": cfg.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
	} {
		if ttl < 0 {
			errs.add(field, fmt.Sprintf("is %s, must be 0 or more", ttl))
		}
	}
	always := kubeletconfigv1beta1.KubeletAuthorizationModeAlwaysAllow
	modes := []kubeletconfigv1beta1.KubeletAuthorizationMode{kubeletconfigv1beta1.KubeletAuthorizationModeWebhook, always}
	if !slices.Contains(modes, cfg.Authorization.Mode) {
		errs.add("authorization.mode", fmt.Sprintf("is %q, must be Webhook or AlwaysAllow", cfg.Authorization.Mode))
	}
	if *cfg.EnableSystemLogQuery && !*cfg.EnableSystemLogHandler {
		errs.add("enableSystemLogQuery", "needs enableSystemLogHandler: leave one of the two out")
	}
	for i, curve := range cfg.TLSCurvePreferences {
		if _, err := Curves([]int32{curve}); err != nil {
			errs.add(fmt.Sprintf("tlsCurvePreferences[%d]", i), err.Error())
		}
	}
	if cfg.ReadOnlyPort != 0 && cfg.ReadOnlyPort == cfg.Port && *cfg.EnableServer {
		errs.add("readOnlyPort", fmt.Sprintf("is %d, as port: must be another, or 0", cfg.ReadOnlyPort))
	}
}

// validateCipherSuites reports unknown cipher suites, and a list without a suite that HTTP/2 requires (RFC 9113,
// section 9.2.2), with which Go's server does not start. A server of TLS 1.3 does not use the list.
func validateCipherSuites(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	known := true
	var suites []uint16
	for i, name := range cfg.TLSCipherSuites {
		suite, err := CipherSuites([]string{name})
		if err != nil {
			errs.add(fmt.Sprintf("tlsCipherSuites[%d]", i), err.Error())
			known = false
		}
		suites = append(suites, suite...)
	}
	version, err := TLSVersion(cfg.TLSMinVersion)
	if !known || len(suites) == 0 || err != nil || version >= tls.VersionTLS13 || !*cfg.EnableServer ||
		slices.Contains(suites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) ||
		slices.Contains(suites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) {
		return
	}
	errs.add("tlsCipherSuites", "leaves HTTP/2 without a cipher suite: add TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or "+
		"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, or set tlsMinVersion: VersionTLS13, which does not use the list")
}

// tlsVersions maps the names of TLS versions to their numbers.
var tlsVersions = map[string]uint16{
	"VersionTLS10": tls.VersionTLS10,
	"VersionTLS11": tls.VersionTLS11,
	"VersionTLS12": tls.VersionTLS12,
	"VersionTLS13": tls.VersionTLS13,
}

// TLSVersion returns the TLS version of a name of crypto/tls; 1.2 for an empty name.
func TLSVersion(name string) (uint16, error) {
	if name == "" {
		return tls.VersionTLS12, nil
	}
	version, ok := tlsVersions[name]
	if !ok {
		return 0, fmt.Errorf("is %q, must be VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13", name)
	}
	return version, nil
}

// CipherSuites returns the cipher suites of names of crypto/tls; nil for no names, which selects the defaults of
// crypto/tls.
func CipherSuites(names []string) ([]uint16, error) {
	var suites []uint16
	for _, name := range names {
		id, ok := cipherSuite(name)
		if !ok {
			return nil, fmt.Errorf(
				"there is no cipher suite %q: name one of https://pkg.go.dev/crypto/tls#pkg-constants, as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
				name,
			)
		}
		suites = append(suites, id)
	}
	return suites, nil
}

// Curves returns the key exchange mechanisms of numbers of crypto/tls; nil for no numbers, which selects the defaults
// of crypto/tls.
func Curves(numbers []int32) ([]tls.CurveID, error) {
	known := []tls.CurveID{
		tls.CurveP256,
		tls.CurveP384,
		tls.CurveP521,
		tls.X25519,
		tls.X25519MLKEM768,
		tls.SecP256r1MLKEM768,
		tls.SecP384r1MLKEM1024,
	}
	var curves []tls.CurveID
	for _, number := range numbers {
		if number < 0 || number > math.MaxUint16 || !slices.Contains(known, tls.CurveID(number)) {
			return nil, fmt.Errorf(
				"there is no mechanism of key exchange %d: name one of https://pkg.go.dev/crypto/tls#CurveID, as 29",
				number,
			)
		}
		curves = append(curves, tls.CurveID(number))
	}
	return curves, nil
}

// cipherSuite returns a cipher suite by its name, including the former names that two of them have.
func cipherSuite(name string) (uint16, bool) {
	if strings.HasSuffix(name, "_WITH_CHACHA20_POLY1305") {
		name += "_SHA256"
	}
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		if suite.Name == name {
			return suite.ID, true
		}
	}
	return 0, false
}

// allowFlag permits an API without authentication.
const allowFlag = "allow-unauthenticated-api"

// AddAllowUnauthenticatedAPI adds the flag to the flags of syncloop and of commands that start it.
func AddAllowUnauthenticatedAPI(flags *pflag.FlagSet, into *bool) {
	flags.BoolVar(
		into,
		allowFlag,
		false,
		"start even if the configuration lets every client of the HTTP API run commands in containers: anonymous requests, mode AlwaysAllow, and an address that is not loopback; each start logs a warning",
	)
}

// AllowUnauthenticatedAPIArg is the flag as an argument.
const AllowUnauthenticatedAPIArg = "--" + allowFlag

// UnauthenticatedAPI returns the address at which everyone on the network may do everything; empty if there is none.
func (c *Config) UnauthenticatedAPI() string {
	k := &c.Kubelet
	if !*k.EnableServer || !*k.Authentication.Anonymous.Enabled ||
		k.Authorization.Mode != kubeletconfigv1beta1.KubeletAuthorizationModeAlwaysAllow ||
		net.ParseIP(c.APIAddress).IsLoopback() {
		return ""
	}
	return net.JoinHostPort(c.APIAddress, strconv.Itoa(int(k.Port)))
}

// exposed reports a configuration that lets everyone on the network do everything.
func exposed(cfg *Config, at string) error {
	return fmt.Errorf(
		"%s: authentication.anonymous.enabled with authorization.mode AlwaysAllow lets every client of %s run commands in the "+
			"containers of this node: leave one of the two out, set address to 127.0.0.1, or allow it with %s",
		cfg.File,
		at,
		AllowUnauthenticatedAPIArg,
	)
}
