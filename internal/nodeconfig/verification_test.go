package nodeconfig

import (
	"strings"
	"testing"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func TestVerificationOfImages(t *testing.T) {
	for fields, want := range map[string]kubeletconfigv1beta1.ImagePullCredentialsVerificationPolicy{
		"": kubeletconfigv1beta1.NeverVerifyPreloadedImages,
		"featureGates: {KubeletEnsureSecretPulledImages: false}": "",
		"imagePullCredentialsVerificationPolicy: AlwaysVerify":   kubeletconfigv1beta1.AlwaysVerify,
		"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [registry.test/*, registry.test:5000/shop/web, busybox]": kubeletconfigv1beta1.NeverVerifyAllowlistedImages,
	} {
		decoded, errs := Decode("f", []byte(head+fields))
		if got := decoded.Kubelet.ImagePullCredentialsVerificationPolicy; len(errs) > 0 || got != want ||
			RecordsPulls(&decoded.Kubelet) != (want != "") {
			t.Errorf("%q: policy %q, %v, want none, %q and RecordsPulls %v", fields, got, errs, want, want != "")
		}
		if named := decoded.unsupported(SyncLoop); len(named) > 0 {
			t.Errorf("%q: named as not acted on: %v", fields, named)
		}
	}
	const allowlisted = "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: "
	for fields, want := range map[string]string{
		"imagePullCredentialsVerificationPolicy: Sometimes":                                                            `f:3: imagePullCredentialsVerificationPolicy: is "Sometimes", must be`,
		"preloadedImagesVerificationAllowlist: [a]":                                                                    "f:3: preloadedImagesVerificationAllowlist: is for",
		"imagePullCredentialsVerificationPolicy: AlwaysVerify\nfeatureGates: {KubeletEnsureSecretPulledImages: false}": "f:3: imagePullCredentialsVerificationPolicy: needs the feature gate",
		allowlisted + "['a:1']":     "f:4: preloadedImagesVerificationAllowlist[0]:",
		allowlisted + "[a, '/*']":   "f:4: preloadedImagesVerificationAllowlist[1]:",
		allowlisted + "['r/*/b/*']": "f:4: preloadedImagesVerificationAllowlist[0]:",
		allowlisted + "['r*']":      "f:4: preloadedImagesVerificationAllowlist[0]:",
		allowlisted + "[' r/*']":    "f:4: preloadedImagesVerificationAllowlist[0]:",
	} {
		if _, errs := Decode("f", []byte(head+fields)); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want) {
			t.Errorf("%q: got %v, want one error that begins with %q", fields, errs, want)
		}
	}
}
