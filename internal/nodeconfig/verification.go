package nodeconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// RecordsPulls reports whether the credentials of image pulls are recorded, to verify which pods may use an image.
func RecordsPulls(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gateEnsureSecretPulledImages)
}

func setVerificationDefaults(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	if RecordsPulls(cfg) {
		setDefault(&cfg.ImagePullCredentialsVerificationPolicy, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	}
}

// validateVerification reports values that the kubelet refuses.
func validateVerification(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	const policyField, listField = "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"
	policy, list := cfg.ImagePullCredentialsVerificationPolicy, cfg.PreloadedImagesVerificationAllowlist
	if !RecordsPulls(cfg) {
		problem := fmt.Sprintf("needs the feature gate %s: remove the gate, or leave this out", gateEnsureSecretPulledImages)
		if policy != "" {
			errs.add(policyField, problem)
		}
		if len(list) > 0 {
			errs.add(listField, problem)
		}
		return
	}
	policies := []kubeletconfigv1beta1.ImagePullCredentialsVerificationPolicy{
		kubeletconfigv1beta1.NeverVerify,
		kubeletconfigv1beta1.NeverVerifyPreloadedImages,
		kubeletconfigv1beta1.NeverVerifyAllowlistedImages,
		kubeletconfigv1beta1.AlwaysVerify,
	}
	if !slices.Contains(policies, policy) {
		errs.add(
			policyField,
			fmt.Sprintf(
				"is %q, must be NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify",
				policy,
			),
		)
		return
	}
	if len(list) > 0 && policy != kubeletconfigv1beta1.NeverVerifyAllowlistedImages {
		errs.add(
			listField,
			fmt.Sprintf("is for %s: NeverVerifyAllowlistedImages only: leave one of the two out", policyField),
		)
		return
	}
	for i, pattern := range list {
		if !isAllowlistPattern(pattern) {
			errs.add(
				fmt.Sprintf("%s[%d]", listField, i),
				fmt.Sprintf(
					"%q must be the name of an image without a tag and digest, or the beginning of some with /* at its end, "+
						"for example registry.example.com/shop/*",
					pattern,
				),
			)
		}
	}
}

// isAllowlistPattern reports whether an entry is the name of an image or a prefix of names.
func isAllowlistPattern(pattern string) bool {
	if beginning, ok := strings.CutSuffix(pattern, "/*"); ok {
		return beginning != "" && !strings.Contains(beginning, "*") && beginning == strings.TrimSpace(beginning)
	}
	named, err := reference.Parse(pattern)
	if err != nil {
		return false
	}
	_, tagged := named.(reference.Tagged)
	_, digested := named.(reference.Digested)
	return !tagged && !digested
}
